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
from penstock_operator.status.diagnosis import ROUTE_CAUSES, SPEC_NOT_IN_EFFECT, PoolProblem
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
class StatusInput:
    """Inputs of a status.

    gateway_pending: whether another gateway than the pool's still runs.
    starts_on_request: whether a pool without replicas starts one at the first request.
    attainment: None if no router answered; the status then keeps the last values.
    autoscaling: the new `status.autoscaling`.
    """

    pool: str
    generation: int
    policy: str
    desired_replicas: int
    desired_routers: int
    children: Sequence[Manifest]
    problems: Sequence[PoolProblem] = ()
    gateway_pending: bool = False
    starts_on_request: bool = False
    scaled_externally: bool = False
    attainment: Mapping[str, TierCounts] | None = None
    autoscaling: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class ComponentPods:
    """Pods of one component, as their controller reports them.

    settled: whether the controller has observed the newest generation.
    """

    desired: int
    current: int = 0
    ready: int = 0
    updated: int = 0
    settled: bool = False
    problem: PoolProblem | None = field(default=None)

    @property
    def all_ready(self) -> bool:
        """Return whether all desired pods are ready."""
        return self.settled and self.ready >= self.desired and self.current >= self.desired


def status_of(inputs: StatusInput, old_status: Mapping[str, Any], now: str) -> Status:
    """Return the new status. old_status: the present one. now: RFC 3339."""
    replicas = _pods(
        inputs,
        Component.REPLICA,
        "StatefulSet",
        replica_name(inputs.pool),
        inputs.desired_replicas,
    )
    routers = _pods(
        inputs,
        Component.ROUTER,
        "Deployment",
        router_name(inputs.pool),
        inputs.desired_routers,
    )
    conditions = _conditions(inputs, replicas, routers)
    status: Status = {
        "observedGeneration": inputs.generation,
        "replicas": replicas.current,
        "readyReplicas": replicas.ready,
        "updatedReplicas": replicas.updated,
        "selector": ",".join(f"{k}={v}" for k, v in sorted(selector(inputs.pool, Component.REPLICA).items())),
        "policy": inputs.policy,
        "conditions": [_condition(inputs.generation, c, old_status, now) for c in conditions],
        **_attainment(inputs.attainment, old_status),
    }
    if inputs.autoscaling is not None:
        status["autoscaling"] = dict(inputs.autoscaling)
    return status


def condition(status: Mapping[str, Any], type_: str) -> Mapping[str, Any] | None:
    """Return a condition of a status by its type; None if there is none."""
    return next((c for c in status.get("conditions", ()) if c["type"] == type_), None)


def _pods(inputs: StatusInput, component: Component, kind: str, name: str, desired: int) -> ComponentPods:
    problems = (
        p for p in inputs.problems if p.component in (component, None) and p.cause not in ROUTE_CAUSES
    )
    problem = next(problems, None)
    for child in inputs.children:
        if child["kind"] == kind and child["metadata"]["name"] == name:
            status = child.get("status", {})
            observed = status.get("observedGeneration", 0) >= child["metadata"].get("generation", 0)
            return ComponentPods(
                desired=desired,
                current=status.get("replicas", 0),
                ready=status.get("readyReplicas", 0),
                updated=status.get("updatedReplicas", 0),
                settled=observed and child.get("spec", {}).get("replicas", 1) == desired,
                problem=problem,
            )
    return ComponentPods(desired=desired, problem=problem)


ConditionValues = tuple[str, bool, str, str]
"""Condition type, whether it is true, reason, message."""


def _conditions(
    inputs: StatusInput, replicas: ComponentPods, routers: ComponentPods
) -> list[ConditionValues]:
    conditions = [
        _ready(inputs, replicas, routers),
        _available(inputs, replicas, routers),
        _component_ready("ReplicasReady", "replica", replicas),
        _component_ready("RouterReady", "router", routers),
        _progressing(inputs, replicas, routers),
        _degraded(inputs.problems),
    ]
    if inputs.scaled_externally:
        conditions.append(
            ("Autoscaling", True, ConditionReason.SCALED_BY_OTHERS, "another autoscaler sets spec.replicas")
        )
    elif inputs.autoscaling is not None and inputs.autoscaling.get("reason"):
        reason = inputs.autoscaling["reason"]
        conditions.append(("Autoscaling", True, _camel_case(reason), inputs.autoscaling.get("message", "")))
    return conditions


def _ready(inputs: StatusInput, replicas: ComponentPods, routers: ComponentPods) -> ConditionValues:
    unmet = next((problem for problem in inputs.problems if problem.cause in SPEC_NOT_IN_EFFECT), None)
    if unmet is not None:
        return ("Ready", False, unmet.cause, unmet.message)
    counts = f"{_count(replicas, 'replica')} and {_count(routers, 'router')} ready"
    for pods in (replicas, routers):
        if not pods.all_ready:
            return ("Ready", False, _reason(pods), _with_problem(counts, pods.problem))
    _, progressing, reason, message = _progressing(inputs, replicas, routers)
    if progressing:
        return ("Ready", False, reason, message)
    if (pending := pending_route(inputs.children)) is not None:
        return ("Ready", False, ConditionReason.ROUTE_PENDING, pending)
    return ("Ready", True, *_serving(inputs, replicas, counts))


def _available(inputs: StatusInput, replicas: ComponentPods, routers: ComponentPods) -> ConditionValues:
    counts = f"{_count(replicas, 'replica')} and {_count(routers, 'router')} ready"
    for pods in (routers, replicas):
        if pods.ready == 0 and pods.desired > 0:
            return ("Available", False, _reason(pods), _with_problem(counts, pods.problem))
    reason, message = _serving(inputs, replicas, counts)
    return ("Available", reason is not ConditionReason.NONE_WANTED, reason, message)


def _serving(inputs: StatusInput, replicas: ComponentPods, counts: str) -> tuple[ConditionReason, str]:
    """Return reason and message of `Available` for a pool that has the pods that it needs."""
    if replicas.ready > 0:
        return ConditionReason.SERVING, counts
    if inputs.starts_on_request:
        return ConditionReason.ASLEEP, "no replica; the first request starts one"
    return ConditionReason.NONE_WANTED, "spec.replicas is 0; scale the pool to serve"


def _component_ready(type_: str, word: str, pods: ComponentPods) -> ConditionValues:
    if pods.desired == 0 and pods.settled:
        return (type_, True, ConditionReason.NONE_WANTED, f"no {word} is desired")
    counts = f"{_count(pods, word)} ready"
    if pods.all_ready:
        return (type_, True, ConditionReason.ALL_READY, counts)
    return (type_, False, _reason(pods), _with_problem(counts, pods.problem))


def _progressing(inputs: StatusInput, replicas: ComponentPods, routers: ComponentPods) -> ConditionValues:
    for word, pods in (("replica", replicas), ("router", routers)):
        if pods.settled and pods.current != pods.desired:
            return (
                "Progressing",
                True,
                ConditionReason.SCALING,
                f"{pods.current} {word}s, {pods.desired} are desired",
            )
        if not pods.settled or pods.updated < pods.desired:
            message = f"{pods.updated} of {pods.desired} {word}s run the newest spec"
            return ("Progressing", True, ConditionReason.ROLLING_OUT, message)
        if pods.ready < pods.desired:
            return ("Progressing", True, ConditionReason.STARTING, f"{_count(pods, word)} ready")
    if inputs.gateway_pending:
        return ("Progressing", True, ConditionReason.ROLLING_OUT, "the gateway changes after the replicas")
    return ("Progressing", False, ConditionReason.SETTLED, "all pods run the newest spec")


def _degraded(problems: Sequence[PoolProblem]) -> ConditionValues:
    if not problems:
        return ("Degraded", False, ConditionReason.AS_WANTED, "no problem is known")
    return ("Degraded", True, problems[0].cause, "; ".join(problem.message for problem in problems[:5]))


def _reason(pods: ComponentPods) -> str:
    return ConditionReason.STARTING if pods.problem is None else pods.problem.cause


def _with_problem(counts: str, problem: PoolProblem | None) -> str:
    return counts if problem is None else f"{counts}; {problem.message}"


def _count(pods: ComponentPods, word: str) -> str:
    return f"{pods.ready} of {pods.desired} {word}{'' if pods.desired == 1 else 's'}"


def _camel_case(reason: str) -> str:
    return "".join(word.capitalize() for word in reason.split("_"))


def _condition(
    generation: int, values: ConditionValues, old_status: Mapping[str, Any], now: str
) -> dict[str, Any]:
    type_, is_true, reason, message = values
    status, old = str(is_true), condition(old_status, type_)
    unchanged = old is not None and old["status"] == status
    return {
        "type": type_,
        "status": status,
        "reason": str(reason),
        "message": message,
        "lastTransitionTime": old["lastTransitionTime"] if unchanged and old is not None else now,
        "observedGeneration": generation,
    }


def _attainment(counts: Mapping[str, TierCounts] | None, old_status: Mapping[str, Any]) -> Status:
    if counts is None:
        return {name: old_status[name] for name in ("attainment", "tiers") if name in old_status}
    judged, met = sum(c.judged for c in counts.values()), sum(c.met for c in counts.values())
    tiers = [_tier(name, tier) for name, tier in sorted(counts.items())]
    if _shares(tiers) == _shares(old_status.get("tiers", ())):
        tiers = list(old_status.get("tiers", ()))  # higher counts alone are no reason for a write
    return {"attainment": f"{met / judged:.1%}" if judged else "", "tiers": tiers}


def _shares(tiers: Iterable[Mapping[str, Any]]) -> dict[str, float | None]:
    return {tier["name"]: tier.get("attainment") for tier in tiers}


def _tier(name: str, counts: TierCounts) -> dict[str, Any]:
    share = {"attainment": round(counts.met / counts.judged, 3)} if counts.judged else {}
    return {"name": name, "requests": counts.judged, **share}
