"""Online correction of a time model by the iterations that an engine really runs [SOLA, §5].

SOLA scales its cost model by γ, an exponential mean of measured over predicted time: γ_i = α·t/C_0 + (1 −
α)·γ_{i−1}. Two things are added, because promises are planned on the result.

An iteration that stalls must not teach: a ratio that is further from γ than a few usual errors counts only
as far as that. The usual error follows, so an engine that has really become slower is believed within a few
dozen iterations.

A mean is exceeded by every other iteration, and lines are exceeded wherever kernels step. `margin` is the
ratio to the mean that only one iteration in forty exceeds, followed online (stochastic approximation of a
quantile), and `corrected` plans with it. Noise averages out over the tokens of an answer, so a promise
judged by means has room to spare; one judged by single gaps is broken by the fortieth iteration that also
uses its whole budget. The first iterations are planned with a margin of a tenth, about what a fit leaves.

A correction is only ever corrected by iterations, and one learned while others used the machine may be so bad
that it refuses everybody, so that there are none. So it ages while the engine rests (`rested`).

The state is a value: `observe` and `rested` return the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

from penstock_core.timing.time_model import BatchWork, TimeModel

LEARNING_RATE = 0.05
"""α. Twenty iterations are about a second of an engine's work."""

MARGIN_QUANTILE = 0.975
MARGIN_STEP = 0.2
"""How far one iteration moves the margin, in usual errors."""

MOST_MARGIN = 1.5
"""An engine that exceeds its mean by more in one iteration of forty needs another model, not more room."""

MOST_MARGIN_ERRORS = 4.0
"""Nor is one in forty beyond this many usual errors: a margin learned in a bad time does not outlive it."""

STALL_ERRORS = 5.0
"""A ratio further off than this many usual errors counts only as far."""

LEAST_ERROR = 0.005
"""No engine is steadier than this, so an exact stretch does not turn the next iteration into a stall."""

REST_HALF_LIFE_S = 10.0
"""An engine that has rested for so long has half of its correction left."""


@dataclass(frozen=True, slots=True)
class Correction:
    """What has been learned of an engine's speed.

    ratio: measured over predicted time, in the mean (γ).
    error: mean absolute error that is left after it, relative.
    margin: ratio to the mean that one iteration in forty exceeds; at least 1.
    observed: iterations learned from.
    """

    ratio: float = 1.0
    error: float = 0.05
    margin: float = 1.1
    observed: int = 0


def observe(correction: Correction, model: TimeModel, work: BatchWork, seconds: float) -> Correction:
    """The correction after an iteration with this work took so long. `model` is the uncorrected one.

    An empty iteration teaches nothing. Raises ValueError where the duration is not positive and finite.
    """
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"an iteration of {work.tokens} tokens cannot take {seconds} s")
    predicted_s = model.seconds(work)
    if predicted_s <= 0:
        return correction
    relative = seconds / predicted_s / correction.ratio
    rate = max(LEARNING_RATE, 1 / (correction.observed + 1))
    stall = STALL_ERRORS * max(correction.error, LEAST_ERROR)
    believed = min(max(relative, 1 - stall), 1 + stall)
    error = correction.error + LEARNING_RATE * (min(abs(relative - 1), 1.0) - correction.error)
    return Correction(
        ratio=correction.ratio * (1 + rate * (believed - 1)),
        error=error,
        margin=_margin_after(correction.margin, error, relative),
        observed=correction.observed + 1,
    )


def rested(correction: Correction, seconds: float) -> Correction:
    """The correction after the engine has had nothing to do for so long: nearer to what one begins with."""
    fresh, left = Correction(), 0.5 ** (seconds / REST_HALF_LIFE_S)
    margin = fresh.margin + (correction.margin - fresh.margin) * left
    return replace(correction, ratio=correction.ratio**left, margin=margin)


def _margin_after(margin: float, error: float, relative: float) -> float:
    """Up by much when exceeded, else down by little: at rest where it is exceeded as rarely as wanted."""
    share = MARGIN_QUANTILE if relative > margin else MARGIN_QUANTILE - 1
    usual = max(error, LEAST_ERROR)
    most = min(MOST_MARGIN, 1 + MOST_MARGIN_ERRORS * usual)
    return min(max(margin + MARGIN_STEP * usual * share, 1.0), most)


def expected(model: TimeModel, correction: Correction) -> TimeModel:
    """The model at the engine's mean speed."""
    return replace(model, scale=model.scale * correction.ratio)


def corrected(model: TimeModel, correction: Correction) -> TimeModel:
    """The model to plan with: at a speed that all but one iteration in forty keep."""
    return replace(model, scale=model.scale * correction.ratio * correction.margin)
