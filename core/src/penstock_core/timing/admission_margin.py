"""Margin of admission, controlled by the share of admitted requests that meet their SLO.

A correction learns how long iterations take (`correction`). The share of admitted requests that met their SLO
shows whether that is enough. If the share is below `TARGET_SHARE`, admission plans with a slower engine and
so admits fewer requests; if it is above, the margin narrows. The margin is tracked online like a quantile
(stochastic approximation): a request that missed its SLO widens it `TARGET_SHARE / (1 - TARGET_SHARE)` times
as much as one that met its SLO narrows it, so it is in balance at the target share.

The margin does not decide that a request can never be served (`idle_replica`): a wide one would tell clients
not to retry, and the autoscaler to ignore the request.

A replica that admits no request cannot learn from requests, so the margin halves with time while no admitted
request ends. It applies to admission alone: the engine forms batches without it, so a batch computes at least
as much as admission planned.

The state is a value: `judged` returns the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

from penstock_core.timing.time_model import TimeModel

TARGET_SHARE = 0.98
"""Share of admitted requests that should meet their SLO. On a machine without disturbances 99 % and more do,
and the margin stays at 1 (`bench/disturbances.py`)."""

WIDENING = 0.15
"""Growth of the margin by one request that missed its SLO."""

MOST_MARGIN = 4.0
"""Largest margin. On an engine four times as slow as measured, almost no request is admitted."""

QUIET_S = 15.0
"""Seconds without the end of an admitted request after which the margin begins to shrink."""

HALF_LIFE_S = 30.0
"""Seconds in which the margin then halves."""


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
    """Return the margin after an admitted request has ended. met: whether it met its SLO.

    Raises ValueError if the time is not finite.
    """
    if not isfinite(now_s):
        raise ValueError(f"a request cannot end at {now_s} s")
    narrowing = WIDENING * (1.0 - TARGET_SHARE) / TARGET_SHARE
    margin = margin_at(state, now_s) + (-narrowing if met else WIDENING)
    return AdmissionMargin(min(max(margin, 1.0), MOST_MARGIN), max(now_s, state.at_s))


def widened(model: TimeModel, state: AdmissionMargin, now_s: float) -> TimeModel:
    """Return the model for admission; the same object if there is no margin."""
    margin = margin_at(state, now_s)
    return model if margin == 1.0 else replace(model, scale=model.scale * margin, admission_margin=margin)


def without_margin(model: TimeModel) -> TimeModel:
    """Return the model at the engine's own speed; the same object if there is no margin."""
    margin = model.admission_margin
    return model if margin == 1.0 else replace(model, scale=model.scale / margin, admission_margin=1.0)
