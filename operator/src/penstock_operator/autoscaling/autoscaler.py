"""The number of replicas of a pool: core's decision from the pool's demand, which survives restarts.

The decision is in `status.autoscaling`, with the `spec.replicas` from which it started. It is valid while
`spec.replicas` is unchanged; after `kubectl scale`, scaling starts from the new number.

The status has decisions, not observations, so it changes only with the number or the reason. Of the
decision's inputs only the learned capacity of a replica is stored, in a ConfigMap of the pool. Windows and
the idle timeout start again after a restart, which delays the first decisions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.terms import Decision, Scaling
from penstock_pool import Pool

from penstock_operator.autoscaling.demand import DemandTally
from penstock_operator.manifests.timestamps import rfc3339

DECISION_PERIOD_S = 10.0
"""Seconds between decisions."""

REASON_PERIOD_S = 60.0
"""Minimum seconds between two reasons in the status while the number of replicas is unchanged."""

CAPACITY_STEP = 0.1
"""The learned capacity is stored again after a change by this share."""


def is_autoscaled(pool: Pool) -> bool:
    """Return whether this operator scales the pool, rather than another autoscaler or none."""
    return pool.spec.autoscaling is not None and pool.spec.autoscaling.by == "penstock"


def scaling_limits(pool: Pool) -> Scaling:
    """Return the limits of scaling. The pool must be autoscaled by this operator."""
    autoscaling = pool.spec.autoscaling
    assert autoscaling is not None
    return autoscaling.scaling()


def current_replicas(pool: Pool, status: Mapping[str, Any]) -> int:
    """Return the number of replicas until the next decision."""
    autoscaling = pool.spec.autoscaling
    if not is_autoscaled(pool) or autoscaling is None:
        return pool.spec.replicas
    stored = status.get("autoscaling", {})
    valid = stored.get("startedFrom") == pool.spec.replicas
    replicas = int(stored["replicas"]) if valid else pool.spec.replicas
    return min(max(replicas, autoscaling.min_replicas), autoscaling.max_replicas)


@dataclass(slots=True)
class Autoscaler:
    """One pool's autoscaling state between reconciliations. memory: None before the first."""

    tally: DemandTally = field(default_factory=DemandTally)
    memory: AutoscalerState | None = None
    last_reason_s: float = -inf

    def capacity_rps(self, stored_rps: float | None) -> float | None:
        """Return the learned capacity of a replica to store. stored_rps: the stored one."""
        learned_rps = stored_rps if self.memory is None else self.memory.capacity_rps
        if learned_rps is None or stored_rps is None:
            return learned_rps
        return stored_rps if abs(learned_rps - stored_rps) <= CAPACITY_STEP * stored_rps else learned_rps

    def decide_scaling(
        self,
        pool: Pool,
        status: Mapping[str, Any],
        demand: DemandObservation,
        now_s: float,
        stored_rps: float | None = None,
    ) -> Mapping[str, Any]:
        """Decide, and return `status.autoscaling`. now_s: Unix time. stored_rps: the stored capacity."""
        old = status.get("autoscaling", {})
        restarts = old.get("startedFrom") != pool.spec.replicas
        memory = AutoscalerState() if restarts else self.memory or AutoscalerState(capacity_rps=stored_rps)
        decision, self.memory = decide_replicas(scaling_limits(pool), demand, memory, now_s)
        decision = limit_step(pool, demand.desired, decision)
        autoscaling = dict(
            replicas=decision.replicas,
            reason=decision.reason.value,
            message=decision.message,
            startedFrom=pool.spec.replicas,
        )
        scaled = decision.replicas != old.get("replicas")
        if scaled or restarts or self._reason_changed(autoscaling["reason"], old, now_s):
            self.last_reason_s = now_s
        else:
            autoscaling |= {name: old[name] for name in ("reason", "message") if name in old}
        last_scale_time = rfc3339(now_s) if scaled and old else old.get("lastScaleTime")
        return autoscaling | ({"lastScaleTime": last_scale_time} if last_scale_time else {})

    def _reason_changed(self, reason: Any, old: Mapping[str, Any], now_s: float) -> bool:
        """Return whether a changed reason is written now. Its message changes with every observation."""
        return reason != old.get("reason") and now_s - self.last_reason_s >= REASON_PERIOD_S


def limit_step(pool: Pool, desired: int, decision: Decision) -> Decision:
    """Return the decision limited to the pool's `maxStep`."""
    autoscaling = pool.spec.autoscaling
    assert autoscaling is not None
    up, down = autoscaling.scale_up.max_step, autoscaling.scale_down.max_step
    replicas = decision.replicas
    if up is not None:
        replicas = min(replicas, desired + up)
    if down is not None:
        replicas = max(replicas, desired - down)
    if replicas == decision.replicas:
        return decision
    return Decision(replicas, decision.reason, f"{decision.message}; maxStep allows {replicas} for now")
