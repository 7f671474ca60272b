"""Margin of admission, controlled by the share of admitted requests that meet their SLO.

A correction learns how long iterations take (`correction`). Whether that is enough shows in one figure: of
the requests that were admitted, how many kept their SLO. Where fewer do than `TARGET_SHARE`, admission plans
with a slower engine and so admits less, until they do; where more do, the margin narrows. It is tracked
online like a quantile (stochastic approximation): a request that missed its SLO widens it `TARGET_SHARE / (1
- TARGET_SHARE)` times as much as one that kept it narrows it, which balances where the share is the target.

A replica that admits nothing has nothing to learn from, so a margin halves with time while no request ends.
It applies to admission alone: the engine forms batches without it, so a batch computes at least what
admission planned.

The state is a value: `judged` returns the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

from penstock_core.timing.time_model import TimeModel

TARGET_SHARE = 0.98
"""Share of admitted requests that should meet their SLO. On a steady machine 99 % and more do, where the
margin rests at 1 (`bench/disturbances.py`)."""

WIDENING = 0.15
"""Growth of the margin by one request that missed its SLO."""

MOST_MARGIN = 4.0
"""Largest margin. With an engine four times as slow as measured, hardly anything is admitted."""

QUIET_S = 15.0
"""Seconds without an admitted request that ends, after which the margin begins to shrink."""

HALF_LIFE_S = 30.0
"""Seconds after which half of it is left then."""


@dataclass(frozen=True, slots=True)
class AdmissionMargin:
    """The margin at a moment: a factor on planned durations, at least 1. at_s: on the owner's clock."""

    margin: float = 1.0
    at_s: float = 0.0


def margin_at(state: AdmissionMargin, now_s: float) -> float:
    """Return the margin now. A clock that runs backwards leaves it as it is."""
    quiet_s = max(now_s - state.at_s - QUIET_S, 0.0)
    left: float = 0.5 ** (quiet_s / HALF_LIFE_S)
    return 1.0 + (state.margin - 1.0) * left


def judged(state: AdmissionMargin, met: bool, now_s: float) -> AdmissionMargin:
    """Return the margin after an admitted request has ended. met: whether it kept its SLO.

    Raises ValueError if the time is not finite.
    """
    if not isfinite(now_s):
        raise ValueError(f"a request cannot end at {now_s} s")
    narrowing = WIDENING * (1.0 - TARGET_SHARE) / TARGET_SHARE
    margin = margin_at(state, now_s) + (-narrowing if met else WIDENING)
    return AdmissionMargin(min(max(margin, 1.0), MOST_MARGIN), max(now_s, state.at_s))


def widened(model: TimeModel, state: AdmissionMargin, now_s: float) -> TimeModel:
    """Return the model to admit with; the same object where there is no margin."""
    margin = margin_at(state, now_s)
    return model if margin == 1.0 else replace(model, scale=model.scale * margin)
