"""Decides how many replicas a pool should have, from the figures that its admission reports.

An autoscaler that watches a queue detects an overload when the queue is long. A pool with admission has no
long queue and better information: the share of demand that it rejected, how often requests hopped, whether
SLOs of admitted requests were met, and the utilization of every replica as its planner estimates it.

Scale-up is fast: the shortfall says how many replicas would have met it. Scale-down is slow: a few replicas
at a time, once all decisions within the window agree, and never below what the admitted requests would fill.
While the capacity of a replica is unknown, each step is observed for a whole window before the next one. A
pool scales to zero only if that is allowed and it has had no request for the idle timeout; the first request
wakes it.

Pure functions of values: `AutoscalerState` is the only state between two calls.
"""

from collections.abc import Callable
from dataclasses import replace
from math import ceil

from penstock_core.autoscaling.demand import DemandObservation
from penstock_core.autoscaling.memory import AutoscalerState, ScalingDecision, with_decision, within
from penstock_core.autoscaling.need import Need, need
from penstock_core.autoscaling.observation import is_busy, observed
from penstock_core.autoscaling.terms import Decision, Scaling, ScalingReason
from penstock_core.autoscaling.utilization import filling

HOPPED = 0.2
"""Highest share of rejections among all attempts at which replicas may still be removed."""

MOST_REMOVED_SHARE = 0.25
"""Largest share of the replicas that one decision removes; one may always be removed."""

Extreme = Callable[[int, int], int]

AT_ONCE = frozenset({ScalingReason.WAKE, ScalingReason.IDLE})
"""Reasons that apply without a window: a request is held, or the idle timeout has passed."""


def decide_replicas(
    scaling: Scaling, demand: DemandObservation, memory: AutoscalerState, now_s: float
) -> tuple[Decision, AutoscalerState]:
    """Return the number of replicas, and the memory for the next observation.

    now_s: on a clock that continues over restarts, like the memory.
    """
    memory = observed(scaling, demand, memory, now_s)
    immediate = _bounded(scaling, _immediate(scaling, demand, memory, now_s))
    if immediate.reason in AT_ONCE:
        return immediate, _with_new_windows(memory, ScalingDecision(now_s, immediate.replicas))
    memory = _with_recorded(scaling, demand, memory, ScalingDecision(now_s, immediate.replicas))
    decision = _bounded(scaling, _stabilised(demand, memory, immediate))
    if decision.replicas < demand.desired and memory.capacity_rps is None:
        memory = _with_new_windows(
            memory, ScalingDecision(now_s, decision.replicas)
        )  # observe the effect of this step first
    return decision, memory


def _immediate(
    scaling: Scaling, demand: DemandObservation, memory: AutoscalerState, now_s: float
) -> Decision:
    """Return the decision for this observation alone, without windows and bounds."""
    needed, wanted = need(scaling, memory), is_busy(demand)
    if demand.desired == 0 and wanted:
        return Decision(max(ceil(needed.replicas), 1), ScalingReason.WAKE, f"{demand.held} requests are held")
    idle_s = now_s - (now_s if memory.busy_s is None else memory.busy_s)
    idle = scaling.min_replicas == 0 and (demand.desired == 0 or idle_s >= scaling.idle_timeout_s)
    if idle and not wanted:
        return Decision(0, ScalingReason.IDLE, f"no request for {idle_s:.0f} s")
    return _moved(scaling, demand, memory, needed)


def _moved(scaling: Scaling, demand: DemandObservation, memory: AutoscalerState, needed: Need) -> Decision:
    """Scale up to what is needed, or down to what a slightly larger demand would need."""
    desired = demand.desired
    more = ceil(needed.replicas)
    if more > desired:
        return Decision(more, needed.reason, needed.explanation)
    fewer = max(ceil(needed.replicas * (1 + scaling.tolerance)), _needed_for_load(scaling, demand), 1)
    if fewer >= desired:
        return Decision(desired, ScalingReason.STEADY, needed.explanation)
    hopped = _hopped(memory)
    if hopped > HOPPED:
        return Decision(desired, ScalingReason.HOPPED, f"replicas rejected {hopped:.0%} of all attempts")
    return Decision(fewer, ScalingReason.SURPLUS, needed.explanation)


def _needed_for_load(scaling: Scaling, demand: DemandObservation) -> int:
    """Return the number of replicas that the admitted requests would fill now, with the tolerance."""
    full = sum(filling(replica.snapshot) for replica in demand.ready())
    return ceil(full * (1 + scaling.tolerance) / scaling.fill)


def _hopped(memory: AutoscalerState) -> float:
    tries = sum(period.tries for period in memory.periods)
    return sum(period.tries_refused for period in memory.periods) / tries if tries else 0.0


def _with_new_windows(memory: AutoscalerState, immediate: ScalingDecision) -> AutoscalerState:
    """Return the memory with windows that begin now."""
    return replace(memory, up=(immediate,), down=(immediate,))


def _with_recorded(
    scaling: Scaling, demand: DemandObservation, memory: AutoscalerState, immediate: ScalingDecision
) -> AutoscalerState:
    """Return the memory with this decision in both windows.

    A window without entries counts as one with the present number.
    """
    present = ScalingDecision(immediate.at_s - demand.elapsed_s, demand.desired)

    def extended(
        window: tuple[ScalingDecision, ...], window_s: float, extreme: Extreme
    ) -> tuple[ScalingDecision, ...]:
        counting = within(window, immediate.at_s, window_s) or within((present,), immediate.at_s, window_s)
        return with_decision(counting, immediate, window_s, extreme)

    up = extended(memory.up, scaling.scale_up_window_s, min)
    return replace(memory, up=up, down=extended(memory.down, scaling.scale_down_window_s, max))


def _stabilised(demand: DemandObservation, memory: AutoscalerState, immediate: Decision) -> Decision:
    """Return the decision on which all decisions within its window agree, at least in direction."""
    desired = demand.desired
    if immediate.replicas > desired:
        replicas = max(min(slot.replicas for slot in memory.up), desired)
    else:
        replicas = min(max(slot.replicas for slot in memory.down), desired)
        replicas = max(replicas, desired - max(int(desired * MOST_REMOVED_SHARE), 1))
    if replicas == desired != immediate.replicas:
        return Decision(
            desired, ScalingReason.STABILISING, f"the demand needs {immediate.replicas}: {immediate.message}"
        )
    return replace(immediate, replicas=replicas)


def _bounded(scaling: Scaling, decision: Decision) -> Decision:
    """Return the decision within the pool's bounds."""
    replicas = min(max(decision.replicas, scaling.min_replicas), scaling.max_replicas)
    if replicas == decision.replicas:
        return decision
    bound = "minReplicas" if replicas > decision.replicas else "maxReplicas"
    return Decision(replicas, ScalingReason.BOUND, f"{decision.message}; {bound} is {replicas}")
