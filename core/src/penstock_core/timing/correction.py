"""Online correction of a time model by measured iterations [SOLA, §5].

SOLA scales its cost model by γ, an exponential mean of measured over predicted time: γ_i = α·t/C_0 + (1 −
α)·γ_{i−1}. Two things are added, because admission depends on the result.

A stalled iteration must not change γ much: a ratio that is further from γ than a few usual errors is clipped
there. The usual error adapts, so an engine that has become slower is followed within a few dozen iterations.
Single slow iterations are learned apart, and plans leave time for them (`step_tail`).

A mean is exceeded by every other iteration, and lines are exceeded at every step of the kernels. `margin` is
the ratio to the mean that only one iteration in forty exceeds (`quantile_margin`), and `corrected` plans with
it. Noise averages out over the tokens of an answer, so an SLO judged by means is met with a reserve; an SLO
judged by single gaps is missed if that one iteration in forty also uses its whole budget. The first
iterations are planned with a margin of a tenth, about the error of a fit.

A deadline that one batch must meet is missed if just that one exceeds its plan: the first token of a prompt,
or the end of a window of tokens. So batches that end at a deadline have a further margin of two usual errors
(`deadline_margin`). All others can be made up for by the next. Where slow steps are planned for, plans leave
more time than that.

Mean and margin are those of all iterations. A kind of iteration, for example of decodes alone, has its own if
it is clearly faster or slower than the model predicts relative to the other kinds (`kind_correction`).

Only iterations update a correction, and one learned while other programs used the machine may be so
pessimistic that all requests are rejected and there are no iterations. So it decays while the engine is idle
(`rested`).

The state is a value: `observe` and `rested` return the next one.
"""

from dataclasses import dataclass, replace
from math import isfinite

from penstock_core.timing.kind_correction import NEW_KINDS, Kinds, applied_ratio
from penstock_core.timing.quantile_margin import clipped, error_after, margin_after
from penstock_core.timing.step_tail import LEAST_CHANCE, NO_TAIL, StepTail
from penstock_core.timing.time_model import BatchWork, TimeModel

LEARNING_RATE = 0.05
"""α. Twenty iterations are about a second of an engine's work."""

DEADLINE_ERRORS = 2.0
"""Margin of batches that end at a deadline, in usual errors. On a machine whose iterations scatter by 3 % it
is 5 %."""

MOST_DEADLINE_MARGIN = 0.2
"""Largest such margin: where iterations are unpredictable, it would take the place of all prefill."""

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
    kinds: corrections by kind of iteration.
    """

    ratio: float = 1.0
    error: float = 0.05
    margin: float = 1.1
    observed: int = 0
    tail: StepTail = NO_TAIL
    kinds: Kinds = NEW_KINDS


def observe(correction: Correction, model: TimeModel, work: BatchWork, seconds: float) -> Correction:
    """Return the correction after an iteration with this work and duration. `model` is the uncorrected one.

    An empty iteration is ignored. Raises ValueError if the duration is not positive and finite.
    """
    if not (isfinite(seconds) and seconds > 0):
        raise ValueError(f"an iteration of {work.tokens} tokens cannot take {seconds} s")
    predicted_s = model.seconds(work)
    if predicted_s <= 0:
        return correction
    kind, observed, tail = correction.kinds.of(work), correction.observed, correction.tail
    relative = seconds / predicted_s / correction.ratio / applied_ratio(kind.ratio)
    rate = max(LEARNING_RATE, 1 / (observed + 1))
    ratio = correction.ratio * (1 + rate * (clipped(relative, correction.error) - 1))
    error = error_after(correction.error, relative)
    return Correction(
        ratio=ratio,
        error=error,
        margin=margin_after(correction.margin, error, relative),
        observed=observed + 1,
        tail=tail.after(relative, observed) if kind.known else tail,
        kinds=correction.kinds.after(work, seconds / predicted_s / ratio),
    )


def rested(correction: Correction, seconds: float) -> Correction:
    """Return the correction after idle seconds: nearer to the initial one."""
    fresh, left = Correction(), 0.5 ** (seconds / REST_HALF_LIFE_S)
    margin = fresh.margin + (correction.margin - fresh.margin) * left
    tail, kinds = correction.tail.fading(left), correction.kinds.fading(left)
    return replace(correction, ratio=correction.ratio**left, margin=margin, tail=tail, kinds=kinds)


def expected(model: TimeModel, correction: Correction) -> TimeModel:
    """Return the model at the engine's mean speed."""
    means = [applied_ratio(kind.ratio) for kind in correction.kinds]
    return _by_kind(replace(model, scale=model.scale * correction.ratio), *means)


def corrected(model: TimeModel, correction: Correction) -> TimeModel:
    """Return the model for planning: the speed that all but one iteration in forty reach, and slow steps."""
    margin = correction.margin
    scale = model.scale * correction.ratio * margin
    chance, excess = correction.tail.chance, (1.0 + correction.tail.excess) / margin - 1.0
    if chance >= LEAST_CHANCE and excess > 0.0:
        planned = replace(model, scale=scale, slow_chance=chance, slow_excess=excess)
    else:
        planned = replace(model, scale=scale, deadline_margin=_deadline_margin(correction))
    quantiles = [applied_ratio(kind.ratio * kind.margin / margin) for kind in correction.kinds]
    return _by_kind(planned, *quantiles)


def _deadline_margin(correction: Correction) -> float:
    """Return the margin of batches that end at a deadline; 0 until it is known how iterations scatter."""
    if correction.observed * LEARNING_RATE < 1.0:
        return 0.0
    return min(DEADLINE_ERRORS * correction.error, MOST_DEADLINE_MARGIN)


def _by_kind(model: TimeModel, decode: float, prefill: float, mixed: float) -> TimeModel:
    """Return the model with these factors by kind; the same object if all are 1."""
    if decode == prefill == mixed == 1.0:
        return model
    return replace(
        model,
        decode_scale=model.decode_scale * decode,
        prefill_scale=model.prefill_scale * prefill,
        mixed_scale=model.mixed_scale * mixed,
    )
