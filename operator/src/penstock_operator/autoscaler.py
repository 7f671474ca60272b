"""How many replicas to run: the core's decision, from this pool's demand, kept over restarts.

What was decided stands in `status.autoscaling`, and with it the `spec.replicas` that it began with. While
that is still the spec's, the decision counts; when somebody has written another number (`kubectl scale`),
scaling begins from there. A restarted operator reads its memory from the status and goes on.

The memory changes with every look, and is not worth a write each time: it is written with a decision that
changes something, and else once a minute. What is lost by a crash is that minute.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import Demand
from penstock_core.autoscaling.memory import Memory, memory_from_json
from penstock_core.autoscaling.terms import Decision, Scaling
from penstock_pool import Pool

from penstock_operator.demand import Tally
from penstock_operator.times import rfc3339

LOOK_S = 10.0
"""Between two looks at the demand."""

KEPT_S = 60.0
"""Between two writes of a memory without any news in it."""


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
    """One pool's autoscaling between two looks. memory: None until it was read from the status."""

    tally: Tally = field(default_factory=Tally)
    memory: Memory | None = None
    kept_at_s: float = 0.0

    def look(self, pool: Pool, status: Mapping[str, Any], demand: Demand, now_s: float) -> Mapping[str, Any]:
        """`status.autoscaling` after this look. now_s: Unix time."""
        before = status.get("autoscaling", {})
        began_anew = before.get("startedFrom") != pool.spec.replicas
        memory = Memory() if began_anew else self.memory or remembered(before.get("memory", ""))
        decision, self.memory = decide_replicas(scaling_of(pool), demand, memory, now_s)
        decision = stepped(pool, demand.desired, decision)
        moved = decision.replicas != before.get("replicas")
        told = {
            "replicas": decision.replicas,
            "reason": decision.reason.value,
            "message": decision.message,
            "startedFrom": pool.spec.replicas,
            "memory": before.get("memory", ""),
        }
        if moved or began_anew or now_s - self.kept_at_s >= KEPT_S:
            told["memory"], self.kept_at_s = orjson.dumps(self.memory.as_json()).decode(), now_s
        elif before.get("reason") == told["reason"]:
            told["message"] = before.get("message", "")  # its figures move with every look
        last = rfc3339(now_s) if moved and before else before.get("lastScaleTime")
        return told | ({"lastScaleTime": last} if last else {})


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


def remembered(text: str) -> Memory:
    """A memory from a status. One that cannot be read, as after an upgrade, is begun anew."""
    try:
        return memory_from_json(orjson.loads(text)) if text else Memory()
    except (KeyError, TypeError, ValueError):
        return Memory()
