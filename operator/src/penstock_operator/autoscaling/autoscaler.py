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
"""Least seconds between two reasons in the status while the number of replicas is unchanged."""

CAPACITY_STEP = 0.1
"""The learned capacity is stored again after a change by this share."""


def scales(pool: Pool) -> bool:
    """Return whether this operator scales the pool, not another autoscaler or none."""
    return pool.spec.autoscaling is not None and pool.spec.autoscaling.by == "penstock"


def scaling_of(pool: Pool) -> Scaling:
    """Return the limits of scaling. The pool must be one that `scales`."""
    autoscaling = pool.spec.autoscaling
    assert autoscaling is not None
    return autoscaling.scaling()


def replicas_now(pool: Pool, status: Mapping[str, Any]) -> int:
    """Return the number of replicas until the next decision."""
    autoscaling = pool.spec.autoscaling
    if not scales(pool) or autoscaling is None:
        return pool.spec.replicas
    decided = status.get("autoscaling", {})
    valid = decided.get("startedFrom") == pool.spec.replicas
    replicas = int(decided["replicas"]) if valid else pool.spec.replicas
    return min(max(replicas, autoscaling.min_replicas), autoscaling.max_replicas)


@dataclass(slots=True)
class Autoscaler:
    """One pool's autoscaling state between reconciliations. memory: None before the first."""

    tally: DemandTally = field(default_factory=DemandTally)
    memory: AutoscalerState | None = None
    reason_written_s: float = -inf

    def capacity_rps(self, written: float | None) -> float | None:
        """Return a replica's capacity to store. written: the stored value."""
        known = written if self.memory is None else self.memory.capacity_rps
        if known is None or written is None:
            return known
        return written if abs(known - written) <= CAPACITY_STEP * written else known

    def decide_scaling(
        self,
        pool: Pool,
        status: Mapping[str, Any],
        demand: DemandObservation,
        now_s: float,
        written_rps: float | None = None,
    ) -> Mapping[str, Any]:
        """Decide, and return `status.autoscaling`. now_s: Unix time. written_rps: the stored capacity."""
        before = status.get("autoscaling", {})
        anew = before.get("startedFrom") != pool.spec.replicas
        memory = AutoscalerState() if anew else self.memory or AutoscalerState(capacity_rps=written_rps)
        decision, self.memory = decide_replicas(scaling_of(pool), demand, memory, now_s)
        decision = limit_step(pool, demand.desired, decision)
        autoscaling = dict(
            replicas=decision.replicas,
            reason=decision.reason.value,
            message=decision.message,
            startedFrom=pool.spec.replicas,
        )
        moved = decision.replicas != before.get("replicas")
        if moved or anew or self._reason_changed(autoscaling["reason"], before, now_s):
            self.reason_written_s = now_s
        else:
            autoscaling |= {name: before[name] for name in ("reason", "message") if name in before}
        last = rfc3339(now_s) if moved and before else before.get("lastScaleTime")
        return autoscaling | ({"lastScaleTime": last} if last else {})

    def _reason_changed(self, reason: Any, before: Mapping[str, Any], now_s: float) -> bool:
        """Return whether a changed reason is written now. Its message changes with every observation."""
        return reason != before.get("reason") and now_s - self.reason_written_s >= REASON_PERIOD_S


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
