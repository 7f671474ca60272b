"""Reconciles one pool: observe, derive the desired state, decide, execute, report.

Reconciliation is level-triggered: it does not depend on the event that caused it, compares the whole
desired state with the whole observed state, and can be interrupted or repeated at any time. The status is
written last, so that it never reports what is not done yet.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import structlog
from cryptography.hazmat.primitives.asymmetric import ec
from penstock_core.autoscaling.demand import ReplicaState
from penstock_pool import Pool

from penstock_operator.autoscaling.autoscaler import DECISION_PERIOD_S, Autoscaler, is_autoscaled
from penstock_operator.autoscaling.demand import demand_of
from penstock_operator.cluster.api_client import Api, ApiStatusError
from penstock_operator.cluster.cache import Cache, PoolKey
from penstock_operator.demand.demand_client import DemandClient
from penstock_operator.demand.demand_page import DemandReport, counts_of
from penstock_operator.manifests.manifest import Manifest, PoolOwner, ref_of
from penstock_operator.manifests.names import ADMIN_PORT, METRICS_PORT, Component, tls_server_name
from penstock_operator.manifests.pods import component_of, is_ready, pods_of
from penstock_operator.manifests.timestamps import rfc3339, unix_s
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.objects.config_maps import learned_capacity_rps
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, decide
from penstock_operator.reconcile.desired_state import DesiredState, desired_state, owner_of, parse_spec
from penstock_operator.reconcile.events import event_manifest, pool_events
from penstock_operator.reconcile.execution import Execution, execute, is_watched
from penstock_operator.reconcile.observed_state import missing_references, pod_warnings, read_secrets
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.conditions import Status, StatusInput, condition, status_of
from penstock_operator.status.diagnosis import PoolProblem, diagnose
from penstock_operator.status.route_status import rejected_routes
from penstock_operator.tls.credentials import read_credentials, renew_credentials

log = structlog.get_logger()

HEALTHY_PERIOD_S = 30.0
"""Seconds until the next reconciliation of a healthy pool, which bounds the age of its attainment."""

MIN_RECHECK_S = 5.0
"""Seconds until the next reconciliation of a pool that has just become degraded; Warnings are not watched."""


@dataclass(slots=True)
class PoolState:
    """State of one pool between reconciliations. Its loss only delays decisions."""

    uid: str
    autoscaler: Autoscaler = field(default_factory=Autoscaler)
    parsed: tuple[Any, Pool | PoolProblem] | None = None


@dataclass(frozen=True, slots=True)
class ReconciledPool:
    """State of a pool after its actions were executed."""

    pool: Pool
    document: Manifest
    desired: DesiredState
    children: Sequence[Manifest]
    reports: Sequence[DemandReport]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles pools. Reconciliations of one pool never overlap; those of several pools do."""

    api: Api
    cache: Cache
    demand_client: DemandClient
    settings: OperatorSettings
    metrics: OperatorMetrics
    pool_states: dict[PoolKey, PoolState] = field(default_factory=dict)

    async def reconcile(self, key: PoolKey) -> float | None:
        """Reconcile a pool. Returns the seconds until its next reconciliation, None if it is deleted.

        Raises ApiUnreachable, ApiStatusError.
        """
        document = self.cache.pool(key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self.pool_states.pop(key, None)  # Kubernetes deletes its objects by their ownerReferences
            return None
        state = self._pool_state(key, document)
        pool = self._read(state, document)
        if isinstance(pool, PoolProblem):
            await self._report(
                document, _status_input_of_invalid(document, self.cache.children(key), pool), ()
            )
            return HEALTHY_PERIOD_S
        desired, execution = await self._apply_desired_state(key, pool, document, state.autoscaler)
        children = self.cache.children(key)
        reports = await self.demand_client.fetch(*_counting_pods(desired, children))
        reconciled = ReconciledPool(pool, document, desired, children, reports)
        problems = await self._problems(key, reconciled, execution.problems)
        autoscaling = _autoscaling_status(state.autoscaler, reconciled) if is_autoscaled(pool) else None
        status_input = _status_input(reconciled, problems, autoscaling)
        status = await self._report(document, status_input, execution.done)
        if autoscaling is not None and autoscaling["replicas"] != desired.replicas:
            return 0.0  # the decision is in the status: the next reconciliation acts on it
        return _next_reconcile_s(pool, status, time.time())

    def _pool_state(self, key: PoolKey, document: Manifest) -> PoolState:
        uid = document["metadata"]["uid"]
        if key not in self.pool_states or self.pool_states[key].uid != uid:
            self.pool_states[key] = PoolState(uid)
        return self.pool_states[key]

    def _read(self, state: PoolState, document: Manifest) -> Pool | PoolProblem:
        spec = document.get("spec")  # not the generation: after a restore of etcd, generations repeat
        if state.parsed is None or state.parsed[0] != spec:
            state.parsed = spec, parse_spec(document)
        return state.parsed[1]

    async def _apply_desired_state(
        self, key: PoolKey, pool: Pool, document: Manifest, autoscaler: Autoscaler
    ) -> tuple[DesiredState, Execution]:
        """Apply the desired state. Returns it, and the result of the actions."""
        owner = owner_of(document)
        observed = [child for child in self.cache.children(key) if child["kind"] != "Pod"]
        credentials = None
        if self.settings.tls:
            secrets = await read_secrets(self.api, key)
            observed += secrets.existing()
            stored = read_credentials(secrets.authority, secrets.published)
            server_name = tls_server_name(key.name, key.namespace)
            credentials = renew_credentials(stored, server_name, datetime.now(UTC), new_key)
        others = (p for p in self.cache.pools() if p["metadata"]["uid"] != owner.uid)
        capacity_rps = (
            autoscaler.capacity_rps(learned_capacity_rps(key.name, observed)) if is_autoscaled(pool) else None
        )
        desired = desired_state(
            pool, document, others, self.settings, credentials, observed=observed, capacity_rps=capacity_rps
        )
        if desired.objects is None:
            return desired, Execution()
        actions = await self._decide(desired.objects, observed, owner)
        return desired, await execute(actions, self.api, self.cache, self.metrics)

    async def _decide(
        self, desired: Sequence[Manifest], observed: Sequence[Manifest], owner: PoolOwner
    ) -> Sequence[Action]:
        """Decide on actions. Objects that seem missing or drifted are first read from the API server.

        The cache has no objects without the operator's label, and no managedFields, which are most of an
        object's size and rarely needed.
        """
        actions = decide(desired, observed, owner)
        to_verify = [
            a.manifest for a in actions if isinstance(a, Apply) and a.reason is not ActionReason.CHANGED
        ]
        refs = [ref_of(manifest) for manifest in to_verify if is_watched(manifest)]
        if not refs:
            return actions
        current = await asyncio.gather(*(self.api.get(ref) for ref in refs))
        return decide(desired, [*observed, *(one for one in current if one is not None)], owner)

    async def _problems(
        self, key: PoolKey, reconciled: ReconciledPool, failed: Sequence[PoolProblem]
    ) -> tuple[PoolProblem, ...]:
        missing, events = await asyncio.gather(
            missing_references(self.api, reconciled.pool, self.settings, reconciled.desired.objects or ()),
            pod_warnings(self.api, key, reconciled.children, reconciled.desired.replicas),
        )
        known = [*reconciled.desired.problems, *failed, *missing, *rejected_routes(reconciled.children)]
        return diagnose(reconciled.children, events, known, time.time())

    async def _report(
        self, document: Manifest, status_input: StatusInput, actions_done: Sequence[Action]
    ) -> Status:
        """Write the status and post Events if they have changed."""
        before: Mapping[str, Any] = document.get("status", {})
        status = status_of(status_input, before, _now())
        for event in pool_events(before, status, actions_done):
            await self._post(event_manifest(document, event, _now()))
        if status != before:
            await self._write(document, status)
        return status

    async def _write(self, document: Manifest, status: Status) -> None:
        metadata = {k: document["metadata"][k] for k in ("name", "namespace", "uid")}
        patch = {"apiVersion": document["apiVersion"], "kind": document["kind"], "metadata": metadata}
        try:
            self.cache.update(await self.api.apply(patch | {"status": status}, subresource="status"))
            self.metrics.status_writes.inc()
        except ApiStatusError as error:
            if error.code != 404:  # it was deleted meanwhile; the watch reports it
                raise

    async def _post(self, event: Manifest) -> None:
        """Post an Event. A refused one is only logged."""
        self.metrics.events.labels(event["reason"]).inc()
        try:
            await self.api.apply(event)
        except ApiStatusError as error:
            if not error.namespace_terminating:
                log.warning("event refused", reason=event["reason"], error=str(error))


def _autoscaling_status(autoscaler: Autoscaler, reconciled: ReconciledPool) -> Mapping[str, Any]:
    """Return the new `status.autoscaling`."""
    counting_pods, _ = _counting_pods(reconciled.desired, reconciled.children)
    autoscaler.tally.retain(pod["metadata"]["uid"] for pod in counting_pods)
    pods = _pods(reconciled.children, Component.REPLICA)
    now_s = time.time()
    demand = demand_of(
        autoscaler.tally,
        reports=reconciled.reports,
        replicas={pod["metadata"]["name"]: _state(pod) for pod in pods},
        desired=reconciled.desired.replicas,
        has_slo={tier.name: not tier.best_effort for tier in reconciled.pool.spec.tiers},
        now_s=now_s,
    )
    stored_rps = learned_capacity_rps(reconciled.pool.metadata.name, reconciled.children)
    return autoscaler.decide_scaling(
        reconciled.pool, reconciled.document.get("status", {}), demand, now_s, stored_rps
    )


def _status_input(
    reconciled: ReconciledPool, problems: Sequence[PoolProblem], autoscaling: Mapping[str, Any] | None
) -> StatusInput:
    pool, spec = reconciled.pool, reconciled.pool.spec.autoscaling
    return StatusInput(
        pool=pool.metadata.name,
        generation=reconciled.document["metadata"]["generation"],
        policy=pool.spec.scheduling.policy,
        desired_replicas=reconciled.desired.replicas,
        desired_routers=pool.spec.router.replicas,
        children=reconciled.children,
        problems=problems,
        gateway_pending=reconciled.desired.gateway_pending,
        starts_on_request=spec is not None and spec.by != "hpa",
        scaled_externally=spec is not None and spec.by != "penstock",
        attainment=counts_of(reconciled.reports) if reconciled.reports else None,
        autoscaling=autoscaling,
    )


def _status_input_of_invalid(
    document: Manifest, children: Sequence[Manifest], problem: PoolProblem
) -> StatusInput:
    """Return the status input of an invalid pool, from its objects and the few fields that are read."""
    spec = document["spec"]
    return StatusInput(
        pool=document["metadata"]["name"],
        generation=document["metadata"]["generation"],
        policy=spec.get("scheduling", {}).get("policy", ""),
        desired_replicas=spec.get("replicas", 1),
        desired_routers=spec.get("router", {}).get("replicas", 2),
        children=children,
        problems=[problem],
        autoscaling=document.get("status", {}).get("autoscaling"),
    )


def _counting_pods(desired: DesiredState, children: Sequence[Manifest]) -> tuple[list[Manifest], int]:
    """Return the pods that count requests, and the port of their reports.

    These are routers, or sidecars behind other gateways, because a picker does not see how requests end.
    """
    if desired.front == "router":
        return _pods(children, Component.ROUTER), ADMIN_PORT
    return _pods(children, Component.REPLICA), METRICS_PORT


def _pods(children: Sequence[Manifest], component: Component) -> list[Manifest]:
    return [pod for pod in pods_of(children) if component_of(pod) is component]


def _state(pod: Manifest) -> ReplicaState:
    return ReplicaState.READY if is_ready(pod) else ReplicaState.STARTING


def _next_reconcile_s(pool: Pool, status: Status, now_s: float) -> float:
    """Return the seconds until the next reconciliation, which grow while a pool stays degraded."""
    at_most_s = DECISION_PERIOD_S if is_autoscaled(pool) else HEALTHY_PERIOD_S
    unhealthy = condition(status, "Degraded"), condition(status, "Progressing")
    since = [
        unix_s(c["lastTransitionTime"], now_s) for c in unhealthy if c is not None and c["status"] == "True"
    ]
    return min(at_most_s, max(MIN_RECHECK_S, (now_s - max(since)) / 4)) if since else at_most_s


def _now() -> str:
    return rfc3339(time.time())


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key for TLS."""
    return ec.generate_private_key(ec.SECP256R1())
