"""How many replicas to run: the core's decision, from this pool's demand, kept over restarts.

What was decided stands in `status.autoscaling`, and with it the `spec.replicas` that it began with. While
that is still the spec's, the decision counts; when somebody has written another number (`kubectl scale`),
scaling begins from there.

The status says what was decided, never what was observed: it is quiet while the number stays. Of all that the
decisions rest on, only the learned capacity of a replica is worth keeping over a restart, in a ConfigMap of
the pool. Windows and the idle timeout begin anew then, so the first decisions wait longer and none is hasty.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import Demand
from penstock_core.autoscaling.memory import Memory
from penstock_core.autoscaling.terms import Decision, Scaling
from penstock_pool import Pool

from penstock_operator.autoscaling.demand import Tally
from penstock_operator.manifests.timestamps import rfc3339

LOOK_S = 10.0
"""Between two looks at the demand."""

CALM_S = 60.0
"""Between two reasons in the status while the number of replicas stays; they turn with the traffic."""

CAPACITY_STEP = 0.1
"""A capacity is written again once it has moved by this share."""


def scales(pool: Pool) -> bool:
    """Whether this operator scales the pool, rather than nobody or somebody else's autoscaler."""
    return pool.spec.autoscaling is not None and pool.spec.autoscaling.by == "penstock"


def scaling_of(pool: Pool) -> Scaling:
    """What the pool allows. Only for one that `scales`."""
    told = pool.spec.autoscaling
    assert told is not None
    return told.scaling()


def replicas_now(pool: Pool, status: Mapping[str, Any]) -> int:
    """How many replicas the pool is to have before the next look."""
    told = pool.spec.autoscaling
    if not scales(pool) or told is None:
        return pool.spec.replicas
    decided = status.get("autoscaling", {})
    valid = decided.get("startedFrom") == pool.spec.replicas
    replicas = int(decided["replicas"]) if valid else pool.spec.replicas
    return min(max(replicas, told.min_replicas), told.max_replicas)


@dataclass(slots=True)
class Scaler:
    """One pool's autoscaling between two reconciles. memory: None before the first."""

    tally: Tally = field(default_factory=Tally)
    memory: Memory | None = None
    told_at_s: float = -inf

    def capacity_rps(self, written: float | None) -> float | None:
        """A replica's capacity, as it is to be written. written: as it is."""
        known = written if self.memory is None else self.memory.capacity_rps
        if known is None or written is None:
            return known
        return written if abs(known - written) <= CAPACITY_STEP * written else known

    def look(
        self,
        pool: Pool,
        status: Mapping[str, Any],
        demand: Demand,
        now_s: float,
        written_rps: float | None = None,
    ) -> Mapping[str, Any]:
        """`status.autoscaling` after this look. now_s: Unix time. written_rps: the capacity that is kept."""
        before = status.get("autoscaling", {})
        anew = before.get("startedFrom") != pool.spec.replicas
        memory = Memory() if anew else self.memory or Memory(capacity_rps=written_rps)
        decision, self.memory = decide_replicas(scaling_of(pool), demand, memory, now_s)
        decision = stepped(pool, demand.desired, decision)
        told = dict(
            replicas=decision.replicas,
            reason=decision.reason.value,
            message=decision.message,
            startedFrom=pool.spec.replicas,
        )
        moved = decision.replicas != before.get("replicas")
        if moved or anew or self._is_news(told["reason"], before, now_s):
            self.told_at_s = now_s
        else:
            told |= {name: before[name] for name in ("reason", "message") if name in before}
        last = rfc3339(now_s) if moved and before else before.get("lastScaleTime")
        return told | ({"lastScaleTime": last} if last else {})

    def _is_news(self, reason: Any, before: Mapping[str, Any], now_s: float) -> bool:
        """Whether a reason is worth a write. The figures in its message move with every observation."""
        return reason != before.get("reason") and now_s - self.told_at_s >= CALM_S


def stepped(pool: Pool, desired: int, decision: Decision) -> Decision:
    """The decision, not further from what is desired now than the pool's largest steps."""
    told = pool.spec.autoscaling
    assert told is not None
    up, down = told.scale_up.max_step, told.scale_down.max_step
    replicas = decision.replicas
    if up is not None:
        replicas = min(replicas, desired + up)
    if down is not None:
        replicas = max(replicas, desired - down)
    if replicas == decision.replicas:
        return decision
    return Decision(replicas, decision.reason, f"{decision.message}; maxStep allows {replicas} for now")
