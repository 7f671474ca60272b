"""Online correction of a time model by measured iterations [SOLA, §5].

SOLA scales its cost model by γ, an exponential mean of measured over predicted time: γ_i = α·t/C_0 + (1 −
α)·γ_{i−1}. Two things are added, because admission depends on the result.

A stalled iteration must not change γ much: a ratio that is further from γ than a few usual errors is clipped
there. The usual error adapts, so an engine that has become slower is followed within a few dozen iterations.
Single slow iterations are learned apart, and plans leave time for them (`step_tail`).

A mean is exceeded by every other iteration, and lines are exceeded at every step of the kernels. `margin` is
the ratio to the mean that only one iteration in forty exceeds, tracked online (stochastic approximation of a
quantile), and `corrected` plans with it. Noise averages out over the tokens of an answer, so an SLO judged by
means is met with room to spare; one judged by single gaps is missed by the fortieth iteration that also uses
its whole budget. The first iterations are planned with a margin of a tenth, about the error of a fit.

Only iterations update a correction, and one learned while other programs used the machine may be so
pessimistic that all requests are rejected and there are no iterations. So it decays while the engine is idle
(`rested`).

The state is a value: `observe` and `rested` return the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

from penstock_core.timing.step_tail import LEAST_CHANCE, NO_TAIL, StepTail
from penstock_core.timing.time_model import BatchWork, TimeModel

LEARNING_RATE = 0.05
"""α. Twenty iterations are about a second of an engine's work."""

MARGIN_QUANTILE = 0.975
MARGIN_STEP = 0.2
"""Change of the margin per iteration, in usual errors."""

MOST_MARGIN = 1.5
"""Largest margin. An engine that exceeds it needs another model, not a larger margin."""

MOST_MARGIN_ERRORS = 4.0
"""Largest margin in usual errors, so that a margin learned under disturbance decays with the errors."""

STALL_ERRORS = 5.0
"""Deviation in usual errors at which a ratio is clipped."""

LEAST_ERROR = 0.005
"""Smallest usual error, so that the first deviation after exact iterations is not taken for a stall."""

REST_HALF_LIFE_S = 10.0
"""Idle seconds after which half of a correction is left."""


@dataclass(frozen=True, slots=True)
class Correction:
    """The learned speed of an engine.

    ratio: mean of measured over predicted time (γ).
    error: mean absolute error that remains, relative.
    margin: ratio to the mean that one iteration in forty exceeds; at least 1.
    observed: iterations learned from.
    tail: its slow steps.
    """

    ratio: float = 1.0
    error: float = 0.05
    margin: float = 1.1
    observed: int = 0
    tail: StepTail = NO_TAIL


def observe(correction: Correction, model: TimeModel, work: BatchWork, seconds: float) -> Correction:
    """Return the correction after an iteration with this work and duration. `model` is the uncorrected one.

    An empty iteration is ignored. Raises ValueError if the duration is not positive and finite.
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
        tail=correction.tail.after(relative, correction.observed),
    )


def rested(correction: Correction, seconds: float) -> Correction:
    """Return the correction after idle seconds: nearer to the initial one."""
    fresh, left = Correction(), 0.5 ** (seconds / REST_HALF_LIFE_S)
    margin = fresh.margin + (correction.margin - fresh.margin) * left
    tail = correction.tail.fading(left)
    return replace(correction, ratio=correction.ratio**left, margin=margin, tail=tail)


def _margin_after(margin: float, error: float, relative: float) -> float:
    """Return the next margin: much larger if exceeded, else slightly smaller, in balance at one in forty."""
    share = MARGIN_QUANTILE if relative > margin else MARGIN_QUANTILE - 1
    usual = max(error, LEAST_ERROR)
    most = min(MOST_MARGIN, 1 + MOST_MARGIN_ERRORS * usual)
    return min(max(margin + MARGIN_STEP * usual * share, 1.0), most)


def expected(model: TimeModel, correction: Correction) -> TimeModel:
    """Return the model at the engine's mean speed."""
    return replace(model, scale=model.scale * correction.ratio)


def corrected(model: TimeModel, correction: Correction) -> TimeModel:
    """Return the model for planning: a speed that all but one iteration in forty reach, and the slow ones."""
    planned = replace(model, scale=model.scale * correction.ratio * correction.margin)
    chance, excess = correction.tail.chance, (1.0 + correction.tail.excess) / correction.margin - 1.0
    if chance < LEAST_CHANCE or excess <= 0.0:
        return planned
    return replace(planned, slow_chance=chance, slow_excess=excess)
