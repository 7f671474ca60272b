"""A time model from measured iterations [SLOs-Serve, §3.1.1: "regression on profiled data"].

What is fitted is the larger of two lines, plus attention:

    T = max over lines of (k·tokens + s·spec_steps + b) + kd·context_tokens + kp·prefill_work

If it were known which line binds in each sample, this would be one linear least-squares problem. So it is
solved by turns: assign each sample to the line that is larger for it, solve, until nothing changes. That
finds a local optimum, so it starts from several guesses of where the lines cross and keeps the best.

Errors are relative, because iterations span two decades and noise grows with them. A real engine stalls now
and then, so residuals past a few deviations count only as much as those at the bound (Huber). Slopes are held
at zero or above: an engine does not get faster by more work. One line is kept where two are no better.

Every fifth sample is held out: fidelity is told of samples that the model has not seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from penstock_core.time_model import BatchWork, Term, TimeModel

Floats = NDArray[np.float64]
Lines = NDArray[np.int64]

LEAST_SAMPLES = 40
HELD_OUT_EVERY = 5
MOST_TURNS = 40
CROSSINGS = (0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9)
"""Quantiles of the samples' tokens at which the two lines are first guessed to cross."""

LEAST_SPAN = 2.0
"""The largest batch must be this many times the smallest, to tell time per token from fixed time."""

ROBUST_DEVIATIONS = 2.5
"""Residuals past this many (robust) standard deviations pull no harder than at it."""

WORTH_A_LINE = 0.97
"""A second line must lower the loss below this share of one line's."""


class Sample(NamedTuple):
    """One measured iteration."""

    work: BatchWork
    seconds: float


class UnfitSamples(ValueError):
    """No time model can be fitted to these samples; the message says why."""


class TooFewSamples(UnfitSamples):
    """Fewer samples than coefficients and a held-out share need."""

    def __init__(self, samples: int) -> None:
        super().__init__(f"{samples} samples, at least {LEAST_SAMPLES} are needed")


class ImpossibleSample(UnfitSamples):
    """A sample without tokens, or without a positive, finite duration."""

    def __init__(self, index: int, sample: Sample) -> None:
        super().__init__(f"sample {index}: {sample.work.tokens} tokens in {sample.seconds} s")


class DegenerateSamples(UnfitSamples):
    """Samples from which the time per token cannot be told."""

    def __init__(self) -> None:
        super().__init__("the time does not grow with the tokens: samples must span small and large batches")


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How well a model predicts samples that it was not fitted to.

    r2: share of the variance explained, at most 1.
    error: mean absolute relative error.
    samples: how many were held out.
    """

    r2: float
    error: float
    samples: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A fitted model and how far to trust it."""

    model: TimeModel
    fidelity: Fidelity


class _Solution(NamedTuple):
    terms: tuple[Term, ...]
    attention: tuple[float, float]
    loss: float


def fit_time_model(name: str, samples: Sequence[Sample]) -> Fit:
    """The time model that best explains the samples. Raises UnfitSamples."""
    _check(samples)
    held_out = samples[::HELD_OUT_EVERY]
    seen = [sample for i, sample in enumerate(samples) if i % HELD_OUT_EVERY]
    features, seconds = _features(seen), np.array([sample.seconds for sample in seen])
    one = _solve(features, seconds, np.zeros(len(seen), dtype=np.int64))
    two = min((_by_turns(features, seconds, lines) for lines in _guesses(features)), key=lambda s: s.loss)
    best = two if two.loss < WORTH_A_LINE * one.loss else one
    if max(term.token_s for term in best.terms) <= 0:
        raise DegenerateSamples
    model = TimeModel(name, best.terms, *best.attention)
    return Fit(model, fidelity(model, held_out))


def fidelity(model: TimeModel, samples: Sequence[Sample]) -> Fidelity:
    """How well the model predicts these samples."""
    measured = np.array([sample.seconds for sample in samples])
    predicted = np.array([model.seconds(sample.work) for sample in samples])
    spread = float(np.sum((measured - measured.mean()) ** 2))
    unexplained = float(np.sum((measured - predicted) ** 2))
    error = float(np.mean(np.abs(predicted - measured) / measured))
    return Fidelity(1 - unexplained / spread if spread > 0 else 0.0, error, len(samples))


def _check(samples: Sequence[Sample]) -> None:
    if len(samples) < LEAST_SAMPLES:
        raise TooFewSamples(len(samples))
    for index, sample in enumerate(samples):
        if sample.work.tokens <= 0 or not 0 < sample.seconds < float("inf"):
            raise ImpossibleSample(index, sample)
    tokens = [sample.work.tokens for sample in samples]
    if max(tokens) < LEAST_SPAN * min(tokens):
        raise DegenerateSamples


def _features(samples: Sequence[Sample]) -> Floats:
    """One row a sample: tokens, spec steps, 1 (a line's); context, prefill work (shared)."""
    rows = [(s.tokens, s.spec_steps, 1.0, s.context_tokens, s.prefill_work) for s, _ in samples]
    return np.array(rows, dtype=np.float64)


def _guesses(features: Floats) -> Iterator[Lines]:
    """Which line binds in each sample, if they cross at these tokens."""
    tokens = features[:, 0]
    for quantile in CROSSINGS:
        lines = (tokens > np.quantile(tokens, quantile)).astype(np.int64)
        if 0 < lines.sum() < len(lines):
            yield lines
    yield np.zeros(len(features), dtype=np.int64)


def _by_turns(features: Floats, seconds: Floats, lines: Lines) -> _Solution:
    """The best of the solutions on the way from a guess to where nothing changes."""
    best = _solve(features, seconds, lines)
    latest = best
    for _ in range(MOST_TURNS):
        binding = _binding(latest, features)
        if np.array_equal(binding, lines):
            break
        lines = binding
        latest = _solve(features, seconds, lines)
        best = min(best, latest, key=lambda solution: solution.loss)
    return best


def _binding(solution: _Solution, features: Floats) -> Lines:
    binding: Lines = np.argmax(_heights(solution.terms, features), axis=0)
    return binding


def _heights(terms: tuple[Term, ...], features: Floats) -> Floats:
    return np.stack([features[:, :3] @ (t.token_s, t.spec_step_s, t.fixed_s) for t in terms])


def _solve(features: Floats, seconds: Floats, lines: Lines) -> _Solution:
    """Robust least squares of relative errors, given which line binds in each sample."""
    used = sorted(set(lines.tolist()))
    parts = [features[:, :3] * (lines == line)[:, None] for line in used]
    design = np.hstack([*parts, features[:, 3:]]) / seconds[:, None]
    free = np.array([False, False, True] * len(used) + [False, False])
    weights = np.ones(len(seconds))
    for _ in range(4):
        coefficients = _least_squares(design, weights, free)
        weights = np.sqrt(_huber_weights(design @ coefficients - 1.0))
    terms = tuple(
        Term(token_s=k, fixed_s=b, spec_step_s=s) for k, s, b in coefficients[:-2].reshape(-1, 3).tolist()
    )
    attention = (float(coefficients[-2]), float(coefficients[-1]))
    predicted = _heights(terms, features).max(axis=0) + features[:, 3:] @ attention
    return _Solution(terms, attention, _loss(predicted / seconds - 1.0))


def _least_squares(design: Floats, weights: Floats, free: NDArray[np.bool_]) -> Floats:
    """Coefficients of ones, those not `free` at zero or above: columns that want below are left out."""
    scale = np.abs(design).max(axis=0)
    kept = scale > 0
    coefficients = np.zeros(design.shape[1])
    while True:
        coefficients[:] = 0.0
        weighted = design[:, kept] / scale[kept] * weights[:, None]
        solved = np.linalg.lstsq(weighted, weights, rcond=1e-10)[0]
        coefficients[kept] = solved / scale[kept]
        below = kept & ~free & (coefficients < 0)
        if not below.any():
            return coefficients
        kept = kept & ~below


def _deviation(residuals: Floats) -> float:
    """Standard deviation, as the median tells it; never so small that rounding errors are outliers."""
    return max(1.4826 * float(np.median(np.abs(residuals))), 1e-6)


def _huber_weights(residuals: Floats) -> Floats:
    bound = ROBUST_DEVIATIONS * _deviation(residuals)
    return bound / np.maximum(np.abs(residuals), bound)


def _loss(residuals: Floats) -> float:
    """Mean Huber loss with one bound for all solutions: 5 %, the fidelity that planning needs."""
    size = np.abs(residuals)
    return float(np.mean(np.where(size < 0.05, size**2, 0.1 * size - 0.0025)))
