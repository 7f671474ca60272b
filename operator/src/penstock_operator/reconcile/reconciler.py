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

from penstock_operator.autoscaling.autoscaler import DECISION_PERIOD_S, Autoscaler, scales
from penstock_operator.autoscaling.demand import demand_of
from penstock_operator.cluster.api_client import Api, ApiRefused
from penstock_operator.cluster.cache import Cache, PoolKey
from penstock_operator.demand.demand_client import DemandClient
from penstock_operator.demand.demand_page import DemandReading, counts_of
from penstock_operator.manifests.manifest import Manifest, PoolOwner, ref_of
from penstock_operator.manifests.names import ADMIN_PORT, METRICS_PORT, Component, tls_server_name
from penstock_operator.manifests.pods import component_of, is_ready, pods_of
from penstock_operator.manifests.timestamps import rfc3339, unix_s
from penstock_operator.metrics import OperatorMetrics
from penstock_operator.objects.config_maps import learned_capacity_rps
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, decide
from penstock_operator.reconcile.desired_state import DesiredState, desired_state, owner_of, read
from penstock_operator.reconcile.events import event_manifest, pool_events
from penstock_operator.reconcile.execution import execute, watched
from penstock_operator.reconcile.observed_state import absent, own_secrets, warnings
from penstock_operator.settings import OperatorSettings
from penstock_operator.status.conditions import Status, View, condition, status_of
from penstock_operator.status.diagnosis import PoolProblem, diagnose
from penstock_operator.status.route_status import rejected_routes
from penstock_operator.tls.credentials import read_credentials, renewed

log = structlog.get_logger()

HEALTHY_PERIOD_S = 30.0
"""Seconds until the next reconciliation of a healthy pool, which bounds the age of its attainment."""

SHORTEST_RECHECK_S = 5.0
"""Seconds until the next reconciliation of a pool that has just become degraded; Warnings are not watched."""


@dataclass(slots=True)
class PoolMemory:
    """State of one pool between reconciliations. Its loss only delays decisions."""

    uid: str
    autoscaler: Autoscaler = field(default_factory=Autoscaler)
    read: tuple[Any, Pool | PoolProblem] | None = None


@dataclass(frozen=True, slots=True)
class ReconciledPool:
    """State of a pool after its actions were executed."""

    pool: Pool
    document: Manifest
    planned: DesiredState
    children: Sequence[Manifest]
    readings: Sequence[DemandReading]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles pools. Reconciliations of one pool never overlap; those of several pools do."""

    api: Api
    cache: Cache
    demand_client: DemandClient
    settings: OperatorSettings
    metrics: OperatorMetrics
    pool_memories: dict[PoolKey, PoolMemory] = field(default_factory=dict)

    async def reconcile(self, key: PoolKey) -> float | None:
        """Reconcile a pool; return the seconds until the next time, None if the pool is gone.

        Raises ApiUnreachable, ApiRefused.
        """
        document = self.cache.pool(key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self.pool_memories.pop(key, None)  # Kubernetes deletes its objects by their ownerReferences
            return None
        memory = self._memory_of(key, document)
        pool = self._read(memory, document)
        if isinstance(pool, PoolProblem):
            await self._report(document, _view_of_invalid(document, self.cache.children(key), pool), ())
            return HEALTHY_PERIOD_S
        planned, done, failed = await self._apply_desired_state(key, pool, document, memory.autoscaler)
        children = self.cache.children(key)
        readings = await self.demand_client.ask(*_counting(planned, children))
        reconciled = ReconciledPool(pool, document, planned, children, readings)
        problems = await self._problems(key, reconciled, failed)
        autoscaling = _autoscaling_status(memory.autoscaler, reconciled) if scales(pool) else None
        status = await self._report(document, _view(reconciled, problems, autoscaling), done)
        if autoscaling is not None and autoscaling["replicas"] != planned.replicas:
            return 0.0  # the decision is in the status: the next reconciliation acts on it
        return _next_reconcile_s(pool, status, time.time())

    def _memory_of(self, key: PoolKey, document: Manifest) -> PoolMemory:
        uid = document["metadata"]["uid"]
        if key not in self.pool_memories or self.pool_memories[key].uid != uid:
            self.pool_memories[key] = PoolMemory(uid)
        return self.pool_memories[key]

    def _read(self, memory: PoolMemory, document: Manifest) -> Pool | PoolProblem:
        spec = document.get("spec")  # not the generation: a restored etcd counts generations anew
        if memory.read is None or memory.read[0] != spec:
            memory.read = spec, read(document)
        return memory.read[1]

    async def _apply_desired_state(
        self, key: PoolKey, pool: Pool, document: Manifest, autoscaler: Autoscaler
    ) -> tuple[DesiredState, Sequence[Action], tuple[PoolProblem, ...]]:
        """Apply the desired state. Returns it, the actions, and the problems of those that failed."""
        owner = owner_of(document)
        there = [child for child in self.cache.children(key) if child["kind"] != "Pod"]
        credentials = None
        if self.settings.tls:
            secrets = await own_secrets(self.api, key)
            there += secrets.existing()
            held = read_credentials(secrets.authority, secrets.published)
            server_name = tls_server_name(key.name, key.namespace)
            credentials = renewed(held, server_name, datetime.now(UTC), new_key)
        others = (p for p in self.cache.pools() if p["metadata"]["uid"] != owner.uid)
        capacity_rps = (
            autoscaler.capacity_rps(learned_capacity_rps(key.name, there)) if scales(pool) else None
        )
        planned = desired_state(
            pool, document, others, self.settings, credentials, observed=there, capacity_rps=capacity_rps
        )
        if planned.wanted is None:
            return planned, (), ()
        actions = await self._decide(planned.wanted, there, owner)
        return planned, actions, await execute(actions, self.api, self.cache, self.metrics)

    async def _decide(
        self, wanted: Sequence[Manifest], there: Sequence[Manifest], owner: PoolOwner
    ) -> Sequence[Action]:
        """Decide on actions. Objects that seem missing or drifted are first read from the API server.

        The cache has no objects without the operator's label, and no managedFields, which are most of an
        object's size and rarely needed.
        """
        actions = decide(wanted, there, owner)
        unsure = [
            a.manifest for a in actions if isinstance(a, Apply) and a.reason is not ActionReason.CHANGED
        ]
        refs = [ref_of(manifest) for manifest in unsure if watched(manifest)]
        if not refs:
            return actions
        found = await asyncio.gather(*(self.api.get(ref) for ref in refs))
        return decide(wanted, [*there, *(one for one in found if one is not None)], owner)

    async def _problems(
        self, key: PoolKey, reconciled: ReconciledPool, failed: Sequence[PoolProblem]
    ) -> tuple[PoolProblem, ...]:
        gone, events = await asyncio.gather(
            absent(self.api, reconciled.pool, self.settings, reconciled.planned.wanted or ()),
            warnings(self.api, key, reconciled.children, reconciled.planned.replicas),
        )
        known = [*reconciled.planned.problems, *failed, *gone, *rejected_routes(reconciled.children)]
        return diagnose(reconciled.children, events, known, time.time())

    async def _report(self, document: Manifest, view: View, done: Sequence[Action]) -> Status:
        """Write the status and post Events if they have changed."""
        before: Mapping[str, Any] = document.get("status", {})
        status = status_of(view, before, _now())
        for event in pool_events(before, status, done):
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
        except ApiRefused as refused:
            if refused.code != 404:  # it was deleted meanwhile; the watch reports it
                raise

    async def _post(self, event: Manifest) -> None:
        """Post an Event. A refused one is only logged."""
        self.metrics.events.labels(event["reason"]).inc()
        try:
            await self.api.apply(event)
        except ApiRefused as refused:
            if not refused.leaving:
                log.warning("event refused", reason=event["reason"], error=str(refused))


def _autoscaling_status(autoscaler: Autoscaler, reconciled: ReconciledPool) -> Mapping[str, Any]:
    """Return the new `status.autoscaling`."""
    counting, _ = _counting(reconciled.planned, reconciled.children)
    autoscaler.tally.keep(pod["metadata"]["uid"] for pod in counting)
    pods = _pods(reconciled.children, Component.REPLICA)
    now_s = time.time()
    demand = demand_of(
        autoscaler.tally,
        readings=reconciled.readings,
        replicas={pod["metadata"]["name"]: _state(pod) for pod in pods},
        desired=reconciled.planned.replicas,
        has_slo={tier.name: not tier.best_effort for tier in reconciled.pool.spec.tiers},
        now_s=now_s,
    )
    written_rps = learned_capacity_rps(reconciled.pool.metadata.name, reconciled.children)
    return autoscaler.decide_scaling(
        reconciled.pool, reconciled.document.get("status", {}), demand, now_s, written_rps
    )


def _view(
    reconciled: ReconciledPool, problems: Sequence[PoolProblem], autoscaling: Mapping[str, Any] | None
) -> View:
    pool, spec = reconciled.pool, reconciled.pool.spec.autoscaling
    return View(
        pool=pool.metadata.name,
        generation=reconciled.document["metadata"]["generation"],
        policy=pool.spec.scheduling.policy,
        replicas_wanted=reconciled.planned.replicas,
        routers_wanted=pool.spec.router.replicas,
        children=reconciled.children,
        problems=problems,
        gateway_pending=reconciled.planned.gateway_pending,
        starts_on_request=spec is not None and spec.by != "hpa",
        scaled_by_others=spec is not None and spec.by != "penstock",
        attainment=counts_of(reconciled.readings) if reconciled.readings else None,
        autoscaling=autoscaling,
    )


def _view_of_invalid(document: Manifest, children: Sequence[Manifest], problem: PoolProblem) -> View:
    """Return the status input of an invalid pool, from its objects and the few fields that are read."""
    spec = document["spec"]
    return View(
        pool=document["metadata"]["name"],
        generation=document["metadata"]["generation"],
        policy=spec.get("scheduling", {}).get("policy", ""),
        replicas_wanted=spec.get("replicas", 1),
        routers_wanted=spec.get("router", {}).get("replicas", 2),
        children=children,
        problems=[problem],
        autoscaling=document.get("status", {}).get("autoscaling"),
    )


def _counting(planned: DesiredState, children: Sequence[Manifest]) -> tuple[list[Manifest], int]:
    """Return the pods that count requests, and the port of their reports.

    Routers do. A picker does not see how requests end: behind other gateways, sidecars count.
    """
    if planned.front == "router":
        return _pods(children, Component.ROUTER), ADMIN_PORT
    return _pods(children, Component.REPLICA), METRICS_PORT


def _pods(children: Sequence[Manifest], component: Component) -> list[Manifest]:
    return [pod for pod in pods_of(children) if component_of(pod) is component]


def _state(pod: Manifest) -> ReplicaState:
    return ReplicaState.READY if is_ready(pod) else ReplicaState.STARTING


def _next_reconcile_s(pool: Pool, status: Status, now_s: float) -> float:
    """Return the seconds until the next reconciliation, which grow while a pool stays degraded."""
    at_most_s = DECISION_PERIOD_S if scales(pool) else HEALTHY_PERIOD_S
    wrong = condition(status, "Degraded"), condition(status, "Progressing")
    since = [unix_s(c["lastTransitionTime"], now_s) for c in wrong if c is not None and c["status"] == "True"]
    return min(at_most_s, max(SHORTEST_RECHECK_S, (now_s - max(since)) / 4)) if since else at_most_s


def _now() -> str:
    return rfc3339(time.time())


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new private key for TLS."""
    return ec.generate_private_key(ec.SECP256R1())
