"""State of autoscaling between observations, in bounded space.

Observations may be several per second and a window may be hours long, so they are not stored individually.
Demand is summed in at most `PERIODS` periods. A stabilization window is divided into at most `SLOTS` slots,
of which only the extreme is stored. At usual intervals between observations no periods are merged.

Losing the memory only costs time: windows begin again, and capacity is learned again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

PERIODS = 12
"""Most periods into which the averaging time of demand is divided."""

SLOTS = 60
"""Most slots of a window. A decision counts at most one sixtieth of the window too long."""


class Share(NamedTuple):
    """One tier's requests in one period, as in `TierDemand`. refused: those that were not admitted."""

    arrived: int
    refused: int
    judged: int
    met: int


class Period(NamedTuple):
    """The time between two observations, or several such times merged.

    ready: replicas that took requests throughout. filled: sum of their utilizations at its end.
    tries, tries_refused: admission decisions by replicas, and rejections among them.
    """

    ended_s: float
    seconds: float
    ready: int
    filled: float
    tries: int
    tries_refused: int
    shares: Mapping[str, Share]


class ScalingDecision(NamedTuple):
    """A decision before windows are applied, or the extreme one of several."""

    at_s: float
    replicas: int


@dataclass(frozen=True, slots=True)
class AutoscalerState:
    """State between observations. The default is that of a new pool.

    periods: the most recent ones, within the averaging time of demand.
    up, down: smallest and largest decision in each slot of the window for scaling up and down.
    capacity_rps: admitted requests per second at which one replica began to reject; None: unknown.
    ready: replicas that took requests at the last observation.
    busy_s: last time with any request; None before the first observation.
    """

    periods: tuple[Period, ...] = ()
    up: tuple[ScalingDecision, ...] = ()
    down: tuple[ScalingDecision, ...] = ()
    capacity_rps: float | None = None
    ready: int = 0
    busy_s: float | None = None


def with_period(periods: tuple[Period, ...], now: Period, averaged_s: float) -> tuple[Period, ...]:
    """Return the periods within the averaging time, with this one added."""
    kept = tuple(period for period in periods if now.ended_s - averaged_s < period.ended_s < now.ended_s)
    if kept and _same_slot(kept[-1].ended_s, now.ended_s, averaged_s / PERIODS):
        return (*kept[:-1], _together(kept[-1], now))
    return (*kept, now)


def with_decision(
    window: tuple[ScalingDecision, ...],
    now: ScalingDecision,
    window_s: float,
    extreme: Callable[[int, int], int],
) -> tuple[ScalingDecision, ...]:
    """Return the slots within the window, with this decision added.

    extreme: `min` if fewer replicas are the cautious choice, `max` if more are.
    """
    kept = within(window, now.at_s, window_s)
    if kept and _same_slot(kept[-1].at_s, now.at_s, window_s / SLOTS):
        return (*kept[:-1], now._replace(replicas=extreme(kept[-1].replicas, now.replicas)))
    return (*kept, now)


def within(window: tuple[ScalingDecision, ...], now_s: float, window_s: float) -> tuple[ScalingDecision, ...]:
    """Return the slots within the window.

    Slots in the future come from a clock that was set back; they are dropped.
    """
    return tuple(decision for decision in window if now_s - window_s <= decision.at_s <= now_s)


def _same_slot(one_s: float, other_s: float, slot_s: float) -> bool:
    return one_s == other_s or one_s // slot_s == other_s // slot_s


def _together(before: Period, now: Period) -> Period:
    """Return two periods merged. If replicas were added in between, the smaller number counts."""
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
