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

from penstock_operator.autoscaling.autoscaler import LOOK_S, Scaler, scales
from penstock_operator.autoscaling.demand import demand_of
from penstock_operator.cluster.api_client import Api, ApiRefused
from penstock_operator.cluster.cache import Cache, PoolKey
from penstock_operator.manifests.manifest import Manifest, Owner, ref_of
from penstock_operator.manifests.names import Component, tls_server_name
from penstock_operator.manifests.pods import component_of, is_ready, pods_of
from penstock_operator.manifests.timestamps import rfc3339, unix_s
from penstock_operator.metrics import Metrics
from penstock_operator.objects.config_maps import learned_capacity_rps
from penstock_operator.reconcile.actions import Action, ActionReason, Apply, decide
from penstock_operator.reconcile.desired_state import DesiredState, desired_state, owner_of, read
from penstock_operator.reconcile.events import event_of, news_of
from penstock_operator.reconcile.execution import carry_out, watched
from penstock_operator.reconcile.observed_state import absent, own_secrets, warnings
from penstock_operator.routers.client import Routers
from penstock_operator.routers.demand_page import Reading, counts_of
from penstock_operator.settings import Settings
from penstock_operator.status.conditions import Status, View, condition, status_of
from penstock_operator.status.diagnosis import Problem, diagnose
from penstock_operator.status.route_status import rejected_routes
from penstock_operator.tls.credentials import read_credentials, renewed

log = structlog.get_logger()

CALM_S = 30.0
"""Until the next reconciliation of a healthy pool: its attainment is as old as this."""

UNEASY_S = 5.0
"""Until the next reconciliation of a pool that has just become incomplete: nothing watches Warnings."""


@dataclass(slots=True)
class Kept:
    """State of one pool between reconciliations. Losing it costs a little time, nothing else."""

    uid: str
    scaler: Scaler = field(default_factory=Scaler)
    read: tuple[Any, Pool | Problem] | None = None


@dataclass(frozen=True, slots=True)
class Scene:
    """State of a pool after its actions were executed."""

    pool: Pool
    document: Manifest
    planned: DesiredState
    children: Sequence[Manifest]
    readings: Sequence[Reading]


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles pools. Reconciliations of one pool never overlap; those of several pools do."""

    api: Api
    cache: Cache
    routers: Routers
    settings: Settings
    metrics: Metrics
    kept: dict[PoolKey, Kept] = field(default_factory=dict)

    async def reconcile(self, key: PoolKey) -> float | None:
        """Reconcile a pool; return the seconds until the next time, None if the pool is gone.

        Raises ApiUnreachable, ApiRefused.
        """
        document = self.cache.pool(key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self.kept.pop(key, None)  # its objects go by their ownerReferences
            return None
        kept = self._kept(key, document)
        pool = self._read(kept, document)
        if isinstance(pool, Problem):
            await self._tell(document, _unread(document, self.cache.children(key), pool), ())
            return CALM_S
        planned, done, failed = await self._bring_about(key, pool, document, kept.scaler)
        children = self.cache.children(key)
        readings = await self.routers.ask(_pods(children, Component.ROUTER))
        scene = Scene(pool, document, planned, children, readings)
        problems = await self._problems(key, scene, failed)
        autoscaling = _scaled(kept.scaler, scene) if scales(pool) else None
        status = await self._tell(document, _view(scene, problems, autoscaling), done)
        if autoscaling is not None and autoscaling["replicas"] != planned.replicas:
            return 0.0  # the decision is in the status: the next reconciliation acts on it
        return _next_reconcile_s(pool, status, time.time())

    def _kept(self, key: PoolKey, document: Manifest) -> Kept:
        uid = document["metadata"]["uid"]
        if key not in self.kept or self.kept[key].uid != uid:
            self.kept[key] = Kept(uid)
        return self.kept[key]

    def _read(self, kept: Kept, document: Manifest) -> Pool | Problem:
        spec = document.get("spec")  # not the generation: a restored etcd counts generations anew
        if kept.read is None or kept.read[0] != spec:
            kept.read = spec, read(document)
        return kept.read[1]

    async def _bring_about(
        self, key: PoolKey, pool: Pool, document: Manifest, scaler: Scaler
    ) -> tuple[DesiredState, Sequence[Action], tuple[Problem, ...]]:
        """Make what is there what is wanted. The plan, what was done for it, and what could not be."""
        owner = owner_of(document)
        there = [child for child in self.cache.children(key) if child["kind"] != "Pod"]
        credentials = None
        if self.settings.tls:
            secrets = await own_secrets(self.api, key)
            there += secrets.there()
            held = read_credentials(secrets.authority, secrets.published)
            server_name = tls_server_name(key.name, key.namespace)
            credentials = renewed(held, server_name, datetime.now(UTC), new_key)
        others = (p for p in self.cache.pools() if p["metadata"]["uid"] != owner.uid)
        capacity_rps = scaler.capacity_rps(learned_capacity_rps(key.name, there)) if scales(pool) else None
        planned = desired_state(pool, document, others, self.settings, credentials, capacity_rps=capacity_rps)
        if planned.wanted is None:
            return planned, (), ()
        actions = await self._decide(planned.wanted, there, owner)
        return planned, actions, await carry_out(actions, self.api, self.cache, self.metrics)

    async def _decide(
        self, wanted: Sequence[Manifest], there: Sequence[Manifest], owner: Owner
    ) -> Sequence[Action]:
        """Decide. What seems to be missing or drifted is read from the API server.

        The cache has no objects without the operator's label, and of no object who owns its fields: that is
        most of an object's size, and rarely asked for.
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

    async def _problems(self, key: PoolKey, scene: Scene, failed: Sequence[Problem]) -> tuple[Problem, ...]:
        gone, events = await asyncio.gather(
            absent(self.api, scene.pool, self.settings, scene.planned.wanted or ()),
            warnings(self.api, key, scene.children, scene.planned.replicas),
        )
        known = [*scene.planned.problems, *failed, *gone, *rejected_routes(scene.children)]
        return diagnose(scene.children, events, known, time.time())

    async def _tell(self, document: Manifest, view: View, done: Sequence[Action]) -> Status:
        """Write the status and post Events, where there is news."""
        before: Mapping[str, Any] = document.get("status", {})
        status = status_of(view, before, _now())
        for news in news_of(before, status, done):
            await self._post(event_of(document, news, _now()))
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
            if refused.code != 404:  # it was deleted meanwhile: the watch will tell
                raise

    async def _post(self, event: Manifest) -> None:
        """An Event is a courtesy: one that is refused keeps nothing from being done."""
        self.metrics.events.labels(event["reason"]).inc()
        try:
            await self.api.apply(event)
        except ApiRefused as refused:
            if not refused.leaving:
                log.warning("event refused", reason=event["reason"], error=str(refused))


def _scaled(scaler: Scaler, scene: Scene) -> Mapping[str, Any]:
    """`status.autoscaling` as it is to be."""
    scaler.tally.keep(pod["metadata"]["uid"] for pod in _pods(scene.children, Component.ROUTER))
    pods = _pods(scene.children, Component.REPLICA)
    now_s = time.time()
    demand = demand_of(
        scaler.tally,
        readings=scene.readings,
        replicas={pod["metadata"]["name"]: _state(pod) for pod in pods},
        desired=scene.planned.replicas,
        promises={tier.name: not tier.best_effort for tier in scene.pool.spec.tiers},
        now_s=now_s,
    )
    written_rps = learned_capacity_rps(scene.pool.metadata.name, scene.children)
    return scaler.look(scene.pool, scene.document.get("status", {}), demand, now_s, written_rps)


def _view(scene: Scene, problems: Sequence[Problem], autoscaling: Mapping[str, Any] | None) -> View:
    pool, told = scene.pool, scene.pool.spec.autoscaling
    return View(
        pool=pool.metadata.name,
        generation=scene.document["metadata"]["generation"],
        policy=pool.spec.scheduling.policy,
        replicas_wanted=scene.planned.replicas,
        routers_wanted=pool.spec.router.replicas,
        children=scene.children,
        problems=problems,
        wakes=told is not None and told.by != "hpa",
        scaled_by_others=told is not None and told.by != "penstock",
        attainment=counts_of(scene.readings) if scene.readings else None,
        autoscaling=autoscaling,
    )


def _unread(document: Manifest, children: Sequence[Manifest], problem: Problem) -> View:
    """Of a pool that cannot be read: what still runs of it, by the few fields that can."""
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


def _pods(children: Sequence[Manifest], component: Component) -> list[Manifest]:
    return [pod for pod in pods_of(children) if component_of(pod) is component]


def _state(pod: Manifest) -> ReplicaState:
    return ReplicaState.READY if is_ready(pod) else ReplicaState.STARTING


def _next_reconcile_s(pool: Pool, status: Status, now_s: float) -> float:
    """Often at first where something is missing, then less and less often."""
    at_most_s = LOOK_S if scales(pool) else CALM_S
    wrong = condition(status, "Degraded"), condition(status, "Progressing")
    since = [unix_s(c["lastTransitionTime"], now_s) for c in wrong if c is not None and c["status"] == "True"]
    return min(at_most_s, max(UNEASY_S, (now_s - max(since)) / 4)) if since else at_most_s


def _now() -> str:
    return rfc3339(time.time())


def new_key() -> ec.EllipticCurvePrivateKey:
    """A private key for TLS."""
    return ec.generate_private_key(ec.SECP256R1())
