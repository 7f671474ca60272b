"""What autoscaling remembers from one observation to the next, in bounded space.

Observations may come several times a second, and a window may be hours long, so nothing is kept of each one.
Demand is summed up in at most `PERIODS` periods. A stabilization window is cut into at most `SLOTS` slots, of
which only the extreme is kept. At the usual intervals between observations nothing is merged.

A memory that is lost costs time only: windows begin anew, and capacity is learned again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

PERIODS = 12
"""The time that demand is averaged over is cut into so many."""

SLOTS = 60
"""A window is cut into so many: what was asked for counts at most a sixtieth of the window too long."""


class Share(NamedTuple):
    """One tier's requests in one period: as in `TierDemand`, refused being all that got no promise."""

    arrived: int
    refused: int
    judged: int
    met: int


class Period(NamedTuple):
    """Between two observations, or several.

    ready: replicas that took work throughout. filled: how many full ones all would make, at its end.
    tries, tries_refused: replicas asked for a promise, and those that gave none.
    """

    ended_s: float
    seconds: float
    ready: int
    filled: float
    tries: int
    tries_refused: int
    shares: Mapping[str, Share]


class Asked(NamedTuple):
    """What one decision would have done, had there been no windows; of several, the extreme."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Everything that is remembered. The default is that of a pool that has just begun.

    periods: the last ones, as far as demand is averaged.
    up, down: the least, and the most, that was asked for in each slot of the window for scaling up, and down.
    capacity_rps: requests with a promise, a second, at which one replica began to refuse; None: never seen.
    ready: replicas that took work at the last observation.
    busy_s: when there was last anything to do; None before the first observation.
    """

    periods: tuple[Period, ...] = ()
    up: tuple[Asked, ...] = ()
    down: tuple[Asked, ...] = ()
    capacity_rps: float | None = None
    ready: int = 0
    busy_s: float | None = None


def with_period(periods: tuple[Period, ...], now: Period, averaged_s: float) -> tuple[Period, ...]:
    """The periods that still count, and this one."""
    kept = tuple(period for period in periods if now.ended_s - averaged_s < period.ended_s < now.ended_s)
    if kept and _same_slot(kept[-1].ended_s, now.ended_s, averaged_s / PERIODS):
        return (*kept[:-1], _together(kept[-1], now))
    return (*kept, now)


def with_asked(
    window: tuple[Asked, ...], now: Asked, window_s: float, extreme: Callable[[int, int], int]
) -> tuple[Asked, ...]:
    """The slots that lie within the window, with what is asked for now.

    extreme: `min` where less is the careful choice, `max` where more is.
    """
    kept = within(window, now.at_s, window_s)
    if kept and _same_slot(kept[-1].at_s, now.at_s, window_s / SLOTS):
        return (*kept[:-1], now._replace(replicas=extreme(kept[-1].replicas, now.replicas)))
    return (*kept, now)


def within(window: tuple[Asked, ...], now_s: float, window_s: float) -> tuple[Asked, ...]:
    """The slots that still count. What lies in the future is of a clock that was put back."""
    return tuple(asked for asked in window if now_s - window_s <= asked.at_s <= now_s)


def _same_slot(one_s: float, other_s: float, slot_s: float) -> bool:
    return one_s == other_s or one_s // slot_s == other_s // slot_s


def _together(before: Period, now: Period) -> Period:
    """Two periods as one. Where more replicas came meanwhile, it counts as that of the fewer."""
    return Period(
        ended_s=now.ended_s,
        seconds=before.seconds + now.seconds,
        ready=min(before.ready, now.ready),
        filled=now.filled,
        tries=before.tries + now.tries,
        tries_refused=before.tries_refused + now.tries_refused,
        shares={
            tier: _sum(before.shares.get(tier), now.shares.get(tier))
            for tier in before.shares.keys() | now.shares.keys()
        },
    )


def _sum(*shares: Share | None) -> Share:
    return Share(*(sum(column) for column in zip(*filter(None, shares), strict=True)))
