"""A pool's status from what was observed, in the types of `penstock_pool.status`.

Pure, and a function of the present state. Only the times of the conditions' transitions are carried over. An
equal status is not written again, so a pool without changes causes no writes.

Deployment tools (flux, Argo CD, `helm --wait`, `kubectl wait`) wait for `Ready`: together with
`observedGeneration` it says that a change is complete. `Available` says that requests are answered.
Conditions build on one another:

    Degraded       there is a problem; the message has the first one
    ReplicasReady  as many replicas as desired are ready, or none is desired
    RouterReady    the same for routers
    Available      at least one of each is ready; or no replica is desired, and the first request starts one
    Ready          the pool is as its spec says: all desired pods are ready and of the newest spec,
                   and the Gateway, if the pool asks for one, has accepted its route
    Progressing    pods are being created, replaced or removed
    Autoscaling    the last decision; only with autoscaling
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from penstock_operator.demand.demand_page import TierCounts
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, replica_name, router_name, selector
from penstock_operator.status.diagnosis import NOT_AS_WRITTEN, NOT_OF_PODS, PoolProblem
from penstock_operator.status.route_status import pending_route

Status = dict[str, Any]


class ConditionReason(StrEnum):
    """Reasons of conditions for which no `Cause` applies."""

    SERVING = "Serving"
    ASLEEP = "Asleep"  # no replica; the first request starts one
    NONE_WANTED = "NoneWanted"  # no replica, and no request starts one
    ALL_READY = "AllReady"
    STARTING = "Starting"  # pods are starting, without a known problem
    ROLLING_OUT = "RollingOut"  # pods are replaced by pods of the newer spec
    ROUTE_PENDING = "RoutePending"  # the Gateway has not answered
    SCALING = "Scaling"  # there are more or fewer pods than desired
    SETTLED = "Settled"
    AS_WANTED = "AsWanted"
    SCALED_BY_OTHERS = "ScaledByOthers"  # a HorizontalPodAutoscaler or KEDA writes spec.replicas


@dataclass(frozen=True, slots=True)
class View:
    """Inputs of a status.

    gateway_pending: whether another gateway than the pool's still runs.
    starts_on_request: whether a pool without replicas starts one at the first request.
    attainment: None if no router answered; the status then keeps the last values.
    autoscaling: the new `status.autoscaling`.
    """

    pool: str
    generation: int
    policy: str
    replicas_wanted: int
    routers_wanted: int
    children: Sequence[Manifest]
    problems: Sequence[PoolProblem] = ()
    gateway_pending: bool = False
    starts_on_request: bool = False
    scaled_by_others: bool = False
    attainment: Mapping[str, TierCounts] | None = None
    autoscaling: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Pods:
    """Pods of one component, as their controller reports them.

    settled: whether the controller has observed the newest generation.
    """

    wanted: int
    there: int = 0
    ready: int = 0
    updated: int = 0
    settled: bool = False
    problem: PoolProblem | None = field(default=None)

    @property
    def all_ready(self) -> bool:
        """Return whether all desired pods are ready."""
        return self.settled and self.ready >= self.wanted and self.there >= self.wanted


def status_of(view: View, before: Mapping[str, Any], now: str) -> Status:
    """Return the new status. before: the present one. now: RFC 3339."""
    replicas = _pods(view, Component.REPLICA, "StatefulSet", replica_name(view.pool), view.replicas_wanted)
    routers = _pods(view, Component.ROUTER, "Deployment", router_name(view.pool), view.routers_wanted)
    conditions = _conditions(view, replicas, routers)
    status: Status = {
        "observedGeneration": view.generation,
        "replicas": replicas.there,
        "readyReplicas": replicas.ready,
        "updatedReplicas": replicas.updated,
        "selector": ",".join(f"{k}={v}" for k, v in sorted(selector(view.pool, Component.REPLICA).items())),
        "policy": view.policy,
        "conditions": [_dated(view.generation, c, before, now) for c in conditions],
        **_attainment(view.attainment, before),
    }
    if view.autoscaling is not None:
        status["autoscaling"] = dict(view.autoscaling)
    return status


def condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return a condition of a status by its type; None if there is none."""
    return next((c for c in status.get("conditions", ()) if c["type"] == type_), None)


def _pods(view: View, component: Component, kind: str, name: str, wanted: int) -> Pods:
    theirs = (p for p in view.problems if p.component in (component, None) and p.cause not in NOT_OF_PODS)
    problem = next(theirs, None)
    for child in view.children:
        if child["kind"] == kind and child["metadata"]["name"] == name:
            status = child.get("status", {})
            current = status.get("observedGeneration", 0) >= child["metadata"].get("generation", 0)
            return Pods(
                wanted=wanted,
                there=status.get("replicas", 0),
                ready=status.get("readyReplicas", 0),
                updated=status.get("updatedReplicas", 0),
                settled=current and child.get("spec", {}).get("replicas", 1) == wanted,
                problem=problem,
            )
    return Pods(wanted=wanted, problem=problem)


ConditionValues = tuple[str, bool, str, str]
"""Condition type, whether it is true, reason, message."""


def _conditions(view: View, replicas: Pods, routers: Pods) -> list[ConditionValues]:
    message = [
        _ready(view, replicas, routers),
        _available(view, replicas, routers),
        _component_ready("ReplicasReady", "replica", replicas),
        _component_ready("RouterReady", "router", routers),
        _progressing(view, replicas, routers),
        _degraded(view.problems),
    ]
    if view.scaled_by_others:
        message.append(("Autoscaling", True, ConditionReason.SCALED_BY_OTHERS, "spec.replicas is followed"))
    elif view.autoscaling is not None and view.autoscaling.get("reason"):
        reason = view.autoscaling["reason"]
        message.append(("Autoscaling", True, _camel(reason), view.autoscaling.get("message", "")))
    return message


def _ready(view: View, replicas: Pods, routers: Pods) -> ConditionValues:
    unmet = next((problem for problem in view.problems if problem.cause in NOT_AS_WRITTEN), None)
    if unmet is not None:
        return ("Ready", False, unmet.cause, unmet.message)
    counts = f"{_count(replicas, 'replica')} and {_count(routers, 'router')} ready"
    for pods in (replicas, routers):
        if not pods.all_ready:
            return ("Ready", False, _why(pods), _with(counts, pods.problem))
    _, progressing, reason, message = _progressing(view, replicas, routers)
    if progressing:
        return ("Ready", False, reason, message)
    if (pending := pending_route(view.children)) is not None:
        return ("Ready", False, ConditionReason.ROUTE_PENDING, pending)
    return ("Ready", True, *_serving(view, replicas, counts))


def _available(view: View, replicas: Pods, routers: Pods) -> ConditionValues:
    counts = f"{_count(replicas, 'replica')} and {_count(routers, 'router')} ready"
    for pods in (routers, replicas):
        if pods.ready == 0 and pods.wanted > 0:
            return ("Available", False, _why(pods), _with(counts, pods.problem))
    reason, message = _serving(view, replicas, counts)
    return ("Available", reason is not ConditionReason.NONE_WANTED, reason, message)


def _serving(view: View, replicas: Pods, counts: str) -> tuple[ConditionReason, str]:
    """Return reason and message of `Available` for a pool that has the pods that it needs."""
    if replicas.ready > 0:
        return ConditionReason.SERVING, counts
    if view.starts_on_request:
        return ConditionReason.ASLEEP, "no replica; the first request starts one"
    return ConditionReason.NONE_WANTED, "spec.replicas is 0; scale the pool to serve"


def _component_ready(type_: str, word: str, pods: Pods) -> ConditionValues:
    if pods.wanted == 0 and pods.settled:
        return (type_, True, ConditionReason.NONE_WANTED, f"no {word} is desired")
    counts = f"{_count(pods, word)} ready"
    if pods.all_ready:
        return (type_, True, ConditionReason.ALL_READY, counts)
    return (type_, False, _why(pods), _with(counts, pods.problem))


def _progressing(view: View, replicas: Pods, routers: Pods) -> ConditionValues:
    for word, pods in (("replica", replicas), ("router", routers)):
        if pods.settled and pods.there != pods.wanted:
            return (
                "Progressing",
                True,
                ConditionReason.SCALING,
                f"{pods.there} {word}s, {pods.wanted} are desired",
            )
        if not pods.settled or pods.updated < pods.wanted:
            message = f"{pods.updated} of {pods.wanted} {word}s are of the newest spec"
            return ("Progressing", True, ConditionReason.ROLLING_OUT, message)
        if pods.ready < pods.wanted:
            return ("Progressing", True, ConditionReason.STARTING, f"{_count(pods, word)} ready")
    if view.gateway_pending:
        return ("Progressing", True, ConditionReason.ROLLING_OUT, "the gateway changes after the replicas")
    return ("Progressing", False, ConditionReason.SETTLED, "all pods are of the newest spec")


def _degraded(problems: Sequence[PoolProblem]) -> ConditionValues:
    if not problems:
        return ("Degraded", False, ConditionReason.AS_WANTED, "no problem is known")
    return ("Degraded", True, problems[0].cause, "; ".join(problem.message for problem in problems[:5]))


def _why(pods: Pods) -> str:
    return ConditionReason.STARTING if pods.problem is None else pods.problem.cause


def _with(counts: str, problem: PoolProblem | None) -> str:
    return counts if problem is None else f"{counts}; {problem.message}"


def _count(pods: Pods, word: str) -> str:
    return f"{pods.ready} of {pods.wanted} {word}{'' if pods.wanted == 1 else 's'}"


def _camel(reason: str) -> str:
    return "".join(word.capitalize() for word in reason.split("_"))


def _dated(generation: int, values: ConditionValues, before: Mapping[str, Any], now: str) -> dict[str, Any]:
    type_, holds, reason, message = values
    status, last = str(holds), condition(before, type_)
    unchanged = last is not None and last["status"] == status
    return {
        "type": type_,
        "status": status,
        "reason": str(reason),
        "message": message,
        "lastTransitionTime": last["lastTransitionTime"] if unchanged and last is not None else now,
        "observedGeneration": generation,
    }


def _attainment(counts: Mapping[str, TierCounts] | None, before: Mapping[str, Any]) -> Status:
    if counts is None:
        return {name: before[name] for name in ("attainment", "tiers") if name in before}
    judged, met = sum(c.judged for c in counts.values()), sum(c.met for c in counts.values())
    tiers = [_tier(name, tier) for name, tier in sorted(counts.items())]
    if _shares(tiers) == _shares(before.get("tiers", ())):
        tiers = list(before.get("tiers", ()))  # higher counts alone are no reason for a write
    return {"attainment": f"{met / judged:.1%}" if judged else "", "tiers": tiers}


def _shares(tiers: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    return {tier["name"]: tier.get("attainment") for tier in tiers}


def _tier(name: str, counts: TierCounts) -> dict[str, Any]:
    share = {"attainment": round(counts.met / counts.judged, 3)} if counts.judged else {}
    return {"name": name, "requests": counts.judged, **share}
