"""Fits a time model to measured iterations, for `penstock profile` and `timeModel: auto`.

The model is linear except for its roofline, whose two lines meet at some batch size. For a given meeting
point it is a problem of least absolute errors, so every meeting point is tried, and the closest model is
used. Errors are relative to the measured time: a millisecond matters more in a decode step of 10 ms than in a
prefill of a second. They are not squared, so a disturbed measurement has little effect. No coefficient may be
negative, since more work never takes less time: the most negative column is dropped, and the rest is solved
again. The one exception is the fixed part of the compute-bound line, an extrapolation to batches that are
never bound by compute.

Two lines are used only if each has enough points and both together are clearly better than one line.

The quality of a fit is measured on points that were not used for it (`held_out`): every fourth of them, in
the order of their tokens, so that small and large batches are represented equally; four times, so that each
point is held out once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.timing.time_model import BatchWork, Term, TimeModel

FEWEST_POINTS = 6
"""Fewest points of a fit."""

FEWEST_ON_A_LINE = 3
"""Fewest points of a line of the roofline."""

TWO_LINES_ERROR = 0.9
"""Largest error of two lines, as a share of one line's, at which they are used."""

HELD_OUT_EVERY = 4

LEAST_SHARE = 1e-3
"""Least duration of a batch of one token, as a share of the shortest measured one."""

REWEIGHTINGS = 15
"""Iterations of weighted least squares that approximate least absolute errors."""

LEAST_ERROR = 1e-3
"""Smallest error that is distinguished, relative."""


class Point(NamedTuple):
    """A measured iteration."""

    work: BatchWork
    seconds: float


class TooFewPoints(Exception):
    """There are too few different iterations to fit a model."""

    def __init__(self, points: int) -> None:
        super().__init__(f"{points} measured points of different size; a time model takes {FEWEST_POINTS}")


class NoDuration(Exception):
    """By the closest model the smallest batch takes no time, because the points are too noisy."""

    def __init__(self) -> None:
        super().__init__("by these points a small batch takes no time; measure again on an idle machine")


@dataclass(frozen=True, slots=True)
class Quality:
    """Errors of predictions.

    mean_error, worst_error: absolute, relative to the measured time. r_squared: explained share of the times'
        variance.
    """

    points: int
    mean_error: float
    worst_error: float
    r_squared: float


@dataclass(frozen=True, slots=True)
class Fit:
    """A model of all points.

    seen: errors on these points. held_out: errors of models of three quarters of the points on the others.
    """

    model: TimeModel
    seen: Quality
    held_out: Quality


def fit(name: str, points: Sequence[Point]) -> Fit:
    """Return the closest model. Raises TooFewPoints, NoDuration."""
    if len({point.work for point in points}) < FEWEST_POINTS:
        raise TooFewPoints(len({point.work for point in points}))
    ordered = sorted(points, key=lambda point: (point.work.tokens, point.work, point.seconds))
    model = closest(name, ordered)
    if model.prefill_seconds(1) < LEAST_SHARE * min(point.seconds for point in points):
        raise NoDuration
    predicted_s = [model.seconds(point.work) for point in ordered]
    return Fit(model, quality(predicted_s, ordered), quality(_unseen_s(name, ordered), ordered))


def _unseen_s(name: str, points: Sequence[Point]) -> list[float]:
    """Return for each point the prediction of a model that was fitted without it."""
    predicted_s = [0.0] * len(points)
    for first in range(HELD_OUT_EVERY):
        seen = [point for at, point in enumerate(points) if at % HELD_OUT_EVERY != first]
        model = closest(name, seen)
        for at in range(first, len(points), HELD_OUT_EVERY):
            predicted_s[at] = model.seconds(points[at].work)
    return predicted_s


def closest(name: str, points: Sequence[Point]) -> TimeModel:
    """Return the model with one line, or with two lines if these are clearly better."""
    one = _one_line(name, points)
    tried = [_two_lines(name, points, tokens) for tokens in _meeting_points(points)]
    two = min(tried, key=lambda model: _error(model, points), default=one)
    better = _error(two, points) <= TWO_LINES_ERROR * _error(one, points)
    return two if better else one


def quality(predicted_s: Sequence[float], points: Sequence[Point]) -> Quality:
    """Return the errors of predictions for at least one point."""
    measured = np.array([point.seconds for point in points])
    predicted = np.array(predicted_s)
    errors = np.abs(predicted / measured - 1)
    spread = float(((measured - measured.mean()) ** 2).sum())
    left = float(((measured - predicted) ** 2).sum())
    r_squared = 1 - left / spread if spread > 0 else float(left == 0)
    return Quality(len(points), float(errors.mean()), float(errors.max()), r_squared)


def _meeting_points(points: Sequence[Point]) -> list[int]:
    """Return possible ends of the memory-bound line, in tokens, with enough points on both sides."""
    sizes = [point.work.tokens for point in points]
    return sorted(
        {
            size
            for size in sizes
            if sum(other <= size for other in sizes) >= FEWEST_ON_A_LINE
            and sum(other > size for other in sizes) >= FEWEST_ON_A_LINE
        }
    )


def _one_line(name: str, points: Sequence[Point]) -> TimeModel:
    tokens, spec_steps, context, attention, seconds = _columns(points)
    table = np.column_stack([tokens, np.ones_like(tokens), spec_steps, context, attention])
    token_s, fixed_s, spec_s, context_s, attention_s = _solved(table, seconds, free=())
    return TimeModel(name, (Term(token_s, fixed_s, spec_s),), context_s, attention_s)


def _two_lines(name: str, points: Sequence[Point], meeting_tokens: int) -> TimeModel:
    tokens, spec_steps, context, attention, seconds = _columns(points)
    small = (tokens <= meeting_tokens).astype(np.float64)
    large = 1 - small
    table = np.column_stack([tokens * small, small, tokens * large, large, spec_steps, context, attention])
    k1_s, b1_s, k2_s, b2_s, spec_s, context_s, attention_s = _solved(table, seconds, free=(3,))
    terms = (Term(k1_s, b1_s, spec_s), Term(k2_s, b2_s, spec_s))
    return TimeModel(name, terms, context_s, attention_s)


def _columns(points: Sequence[Point]) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    works = [point.work for point in points]
    return (
        np.array([work.tokens for work in works], np.float64),
        np.array([work.spec_steps for work in works], np.float64),
        np.array([work.context_tokens for work in works], np.float64),
        np.array([work.prefill_work for work in works], np.float64),
        np.array([point.seconds for point in points], np.float64),
    )


def _solved(table: Floats, seconds: Floats, free: tuple[int, ...]) -> list[float]:
    """Return the coefficients of least relative error, non-negative except for the columns in `free`.

    Least absolute errors by iteratively reweighted least squares.
    """
    relative = table / seconds[:, None]
    scale = np.maximum(np.abs(relative).max(axis=0), np.finfo(np.float64).tiny)
    relative, weights = relative / scale, np.ones_like(seconds)
    for _ in range(REWEIGHTINGS):
        found = _least_squares(relative * weights[:, None], weights, free)
        weights = np.maximum(np.abs(relative @ found - 1), LEAST_ERROR) ** -0.5
    return [float(value) for value in found / scale]


def _least_squares(table: Floats, wanted: Floats, free: tuple[int, ...]) -> Floats:
    kept = [column for column in range(table.shape[1]) if table[:, column].any()]
    while True:
        found, *_ = np.linalg.lstsq(table[:, kept], wanted, rcond=None)
        bound = [(value, column) for value, column in zip(found, kept, strict=True) if column not in free]
        negative = [column for value, column in sorted(bound) if value < 0]
        if not negative:
            break
        kept.remove(negative[0])
    coefficients = np.zeros(table.shape[1])
    coefficients[kept] = found
    return coefficients


def _error(model: TimeModel, points: Sequence[Point]) -> float:
    return sum(abs(model.seconds(point.work) / point.seconds - 1) for point in points)
