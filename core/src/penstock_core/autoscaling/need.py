"""Replicas that the demand needs: the largest of three estimates.

- Shortfall: `ready / kept`. If a third was rejected, half as many replicas again would have admitted it.
- Offered load, over the load at which one replica began to reject. This estimate keeps the number after
  rejections have ended.
- Utilization: how many full replicas the admitted requests make (memory at its peak, time for prefills). This
  is the only estimate before the first rejection, and it keeps capacity for running requests.

All three plan replicas to be at most `fill` full, so that there is capacity for requests that arrive while
replicas start.
"""

from typing import NamedTuple

from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.observation import offered_rps, shortfall_now
from penstock_core.autoscaling.terms import Scaling, ScalingReason


class Need(NamedTuple):
    """An estimate. replicas: may be fractional."""

    replicas: float
    reason: ScalingReason
    explanation: str


def need(scaling: Scaling, memory: AutoscalerState) -> Need:
    """Return the largest estimate; of equal ones the first."""
    return max(
        (_by_shortfall(scaling, memory), _by_offered_load(scaling, memory), _by_utilization(scaling, memory)),
        key=lambda one: round(one.replicas, 6),  # a capacity just learned equals the shortfall
    )


def _by_shortfall(scaling: Scaling, memory: AutoscalerState) -> Need:
    short, ready = shortfall_now(scaling, memory), memory.ready
    if short is None:
        return Need(0.0, ScalingReason.STEADY, "no request was rejected")
    words = "rejected by" if short.reason is ScalingReason.REFUSED else "late at"
    explanation = f"{1 - short.kept:.0%} of tier {short.tier} were {words} {_number_of(ready)}"
    return Need(ready * short.times(ready) / scaling.fill, short.reason, explanation)


def _by_offered_load(scaling: Scaling, memory: AutoscalerState) -> Need:
    rate_rps, capacity_rps = offered_rps(memory.periods), memory.capacity_rps
    if not capacity_rps:
        return Need(0.0, ScalingReason.STEADY, "no request has been rejected yet")
    explanation = f"{rate_rps:.3g} requests/s are offered, and a replica takes {capacity_rps:.3g}"
    return Need(rate_rps / (capacity_rps * scaling.fill), ScalingReason.OFFERED, explanation)


def _by_utilization(scaling: Scaling, memory: AutoscalerState) -> Need:
    periods = memory.periods
    full = sum(period.filled for period in periods) / len(periods) if periods else 0.0
    explanation = f"the admitted requests fill {full:.2f} replicas"
    return Need(full / scaling.fill, ScalingReason.FILLED, explanation)


def _number_of(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas != 1 else ''}"
