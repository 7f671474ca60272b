"""How many replicas a pool is to have, decided by what its admission knows.

An autoscaler that watches a queue learns of an overload when the queue is long. A pool that refuses what it
cannot keep has no long queue, and knows more: which share of the demand it had to refuse, how often requests
were sent on, whether promises were kept, and how full its planner takes every replica to be.

Up fast: what fell short says how many replicas would have kept it. Down slowly, a few at a time, once all
decisions within the window agree, and never below what the promises already made would fill; where it was
never seen how much a replica takes, every step is watched for a whole window before the next. To zero only
where that is allowed and nothing has come for the idle timeout; from zero with the first request.

A value in, a value out: `Memory` is all that is kept between two calls.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from penstock_core.autoscaling.demand import Demand
from penstock_core.autoscaling.memory import Asked, Memory, with_asked, within
from penstock_core.autoscaling.need import Need, need
from penstock_core.autoscaling.observation import is_busy, observed
from penstock_core.autoscaling.terms import Decision, Reason, Scaling
from penstock_core.autoscaling.utilization import filling

HOPPED = 0.2
"""Where more than this share of all tries is refused, replicas are too full for any to be given away."""

MOST_AWAY = 0.25
"""Share of the replicas that one decision gives away at most, but one may always go."""

Extreme = Callable[[int, int], int]

AT_ONCE = frozenset({Reason.WAKE, Reason.IDLE})
"""No window is waited for: a request is held, or the idle timeout has been one."""


def decide_replicas(
    scaling: Scaling, demand: Demand, memory: Memory, now_s: float
) -> tuple[Decision, Memory]:
    """How many replicas there are to be now, and what to remember until the next observation.

    now_s: on a clock that goes on over restarts, as the memory does.
    """
    memory = observed(scaling, demand, memory, now_s)
    asked = _bounded(scaling, _asked(scaling, demand, memory, now_s))
    if asked.reason in AT_ONCE:
        return asked, _begun(memory, Asked(now_s, asked.replicas))
    memory = _remembered(scaling, demand, memory, Asked(now_s, asked.replicas))
    decision = _bounded(scaling, _stabilised(demand, memory, asked))
    if decision.replicas < demand.desired and memory.capacity_rps is None:
        memory = _begun(memory, Asked(now_s, decision.replicas))  # see first what that does
    return decision, memory


def _asked(scaling: Scaling, demand: Demand, memory: Memory, now_s: float) -> Decision:
    """What this observation asks for, had there been neither windows nor bounds."""
    wants, wanted = need(scaling, memory), is_busy(demand)
    if demand.desired == 0 and wanted:
        return Decision(max(ceil(wants.replicas), 1), Reason.WAKE, f"{demand.held} requests are held")
    idle_s = now_s - (now_s if memory.busy_s is None else memory.busy_s)
    idle = scaling.min_replicas == 0 and (demand.desired == 0 or idle_s >= scaling.idle_timeout_s)
    if idle and not wanted:
        return Decision(0, Reason.IDLE, f"no request for {idle_s:.0f} s")
    return _moved(scaling, demand, memory, wants)


def _moved(scaling: Scaling, demand: Demand, memory: Memory, wants: Need) -> Decision:
    """Up to what is needed; down to what would be needed if the demand were a little larger."""
    desired = demand.desired
    more = ceil(wants.replicas)
    if more > desired:
        return Decision(more, wants.reason, wants.because)
    fewer = max(ceil(wants.replicas * (1 + scaling.tolerance)), _kept_busy(scaling, demand), 1)
    if fewer >= desired:
        return Decision(desired, Reason.STEADY, wants.because)
    hopped = _hopped(memory)
    if hopped > HOPPED:
        return Decision(desired, Reason.HOPPED, f"{hopped:.0%} of all tries were refused")
    return Decision(fewer, Reason.SURPLUS, wants.because)


def _kept_busy(scaling: Scaling, demand: Demand) -> int:
    """Replicas that the promises made so far would fill at this moment, with the tolerance."""
    full = sum(filling(replica.snapshot) for replica in demand.ready())
    return ceil(full * (1 + scaling.tolerance) / scaling.fill)


def _hopped(memory: Memory) -> float:
    tries = sum(period.tries for period in memory.periods)
    return sum(period.tries_refused for period in memory.periods) / tries if tries else 0.0


def _begun(memory: Memory, asked: Asked) -> Memory:
    """The memory with windows that begin now."""
    return replace(memory, up=(asked,), down=(asked,))


def _remembered(scaling: Scaling, demand: Demand, memory: Memory, asked: Asked) -> Memory:
    """The memory with what is asked for now in both windows.

    A window in which nothing was asked for counts as one that asked for what there is.
    """
    there = Asked(asked.at_s - demand.elapsed_s, demand.desired)

    def extended(window: tuple[Asked, ...], window_s: float, extreme: Extreme) -> tuple[Asked, ...]:
        counting = within(window, asked.at_s, window_s) or within((there,), asked.at_s, window_s)
        return with_asked(counting, asked, window_s, extreme)

    up = extended(memory.up, scaling.scale_up_window_s, min)
    return replace(memory, up=up, down=extended(memory.down, scaling.scale_down_window_s, max))


def _stabilised(demand: Demand, memory: Memory, asked: Decision) -> Decision:
    """The decision that all within its window agree to, at least in its direction."""
    desired = demand.desired
    if asked.replicas > desired:
        replicas = max(min(slot.replicas for slot in memory.up), desired)
    else:
        replicas = min(max(slot.replicas for slot in memory.down), desired)
        replicas = max(replicas, desired - max(int(desired * MOST_AWAY), 1))
    if replicas == desired != asked.replicas:
        return Decision(desired, Reason.STABILISING, f"{asked.replicas} are asked for: {asked.message}")
    return replace(asked, replicas=replicas)


def _bounded(scaling: Scaling, decision: Decision) -> Decision:
    """The decision within the pool's bounds."""
    replicas = min(max(decision.replicas, scaling.min_replicas), scaling.max_replicas)
    if replicas == decision.replicas:
        return decision
    bound = "minReplicas" if replicas > decision.replicas else "maxReplicas"
    return Decision(replicas, Reason.BOUND, f"{decision.message}; {bound} is {replicas}")
