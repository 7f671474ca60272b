"""How many replicas the demand needs, by three measures; the one that asks for most is believed.

- What fell short: `ready / kept`. If a third was refused, half as many replicas more would have taken it.
- What is offered, against what one replica was seen to take before it began to refuse. This is what holds the
  number once nothing is refused any more.
- What replicas have accepted: how many full ones it would make [memory at its peak, time for prefills]. It is
  what there is to go by before anything was ever refused, and it keeps room for what runs.

All are planned to be no fuller than `fill`, so that what comes while replicas start finds room.
"""

from typing import NamedTuple

from penstock_core.autoscaling.memory import Memory
from penstock_core.autoscaling.observation import offered_rps, shortfall_now
from penstock_core.autoscaling.terms import Reason, Scaling


class Need(NamedTuple):
    """replicas: a fraction says how nearly one fewer would do."""

    replicas: float
    reason: Reason
    because: str


def need(scaling: Scaling, memory: Memory) -> Need:
    """The most that any measure asks for. Of equals, the first stands."""
    return max(
        (_short(scaling, memory), _offered(scaling, memory), _filled(scaling, memory)),
        key=lambda one: round(one.replicas, 6),  # a capacity just learned says the same as the shortfall
    )


def _short(scaling: Scaling, memory: Memory) -> Need:
    short, ready = shortfall_now(scaling, memory), memory.ready
    if short is None:
        return Need(0.0, Reason.STEADY, "nothing was refused")
    words = "refused" if short.reason is Reason.REFUSED else "late"
    because = f"{1 - short.kept:.0%} of tier {short.tier} were {words} by {_counted(ready)}"
    return Need(ready * short.times(ready) / scaling.fill, short.reason, because)


def _offered(scaling: Scaling, memory: Memory) -> Need:
    rate_rps, capacity_rps = offered_rps(memory.periods), memory.capacity_rps
    if not capacity_rps:
        return Need(0.0, Reason.STEADY, "nothing was ever refused")
    because = f"{rate_rps:.3g} requests/s are offered, and a replica takes {capacity_rps:.3g}"
    return Need(rate_rps / (capacity_rps * scaling.fill), Reason.OFFERED, because)


def _filled(scaling: Scaling, memory: Memory) -> Need:
    periods = memory.periods
    full = sum(period.filled for period in periods) / len(periods) if periods else 0.0
    because = f"what is accepted fills {full:.2f} replicas"
    return Need(full / scaling.fill, Reason.FILLED, because)


def _counted(replicas: int) -> str:
    return f"{replicas} replica{'s' if replicas != 1 else ''}"
