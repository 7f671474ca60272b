"""Predicts the length of an answer from the lengths of finished ones [SOLA, §4.3].

Answers of one tier to prompts of similar length are similar, so lengths are counted per tier and per power of
two of prompt tokens. A prediction is a quantile of the lengths above the present one: an answer that has
outlived most is expected to be a long one. Planning needs a high quantile, because an answer that exceeds its
prediction takes memory of other admitted requests.

Counts are small at first, so each level has the level above it as prior, with the weight of a few answers: a
prompt bucket its tier, the tier a fixed prior. That is the chat service in the Azure 2023 trace (mean 211,
median 129 output tokens): lognormal with median 128 and sigma 1, which has the same mean and the 0.9 quantile
at 461.

Lengths are counted in bins that grow by a tenth, uniform within a bin. Old answers decay: each newer answer
has a little more weight, which is equivalent. An answer that was cut off at its token limit would have been
longer, so its weight is distributed over longer lengths, by the present distribution.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, erf, exp, log, sqrt
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.domain.request import Request

PLANNING_QUANTILE = 0.9
SURE_QUANTILE = 0.02
"""Quantile of lengths that an answer almost surely reaches: one in fifty is shorter."""

PRIOR_MEDIAN_TOKENS, PRIOR_SIGMA = 128.0, 1.0
PRIOR_ANSWERS = 20.0
"""Number of answers from which a level has the same weight as its prior, the level above it."""

MEMORY_ANSWERS = 2000.0
"""Answers of a tier after which one has decayed to a third."""

LONGEST_TOKENS = 1 << 18
"""Largest length that is counted separately."""

BINS_PER_DOUBLING = 8
HEAVIEST_ANSWER = 1e12
"""Weight of a new answer at which a tier's counts are rescaled."""


def _bin_edges() -> list[float]:
    """Return the edges: from 0 by ones, then by a tenth, to the largest length."""
    edges = [0.0]
    while edges[-1] < LONGEST_TOKENS:
        edges.append(max(edges[-1] + 1, round(edges[-1] * 2 ** (1 / BINS_PER_DOUBLING))))
    return edges


EDGES = _bin_edges()
BINS = len(EDGES) - 1
WHOLE = np.ones(1)


def _prior_longer(tokens: float) -> float:
    """Return the prior share of answers that are longer."""
    if tokens <= 0:
        return 1.0
    return 0.5 * (1 - erf(log(tokens / PRIOR_MEDIAN_TOKENS) / (PRIOR_SIGMA * sqrt(2))))


PRIOR = np.array([_prior_longer(below) - _prior_longer(above) for below, above in pairwise(EDGES)])


class Lengths(NamedTuple):
    """A distribution of lengths.

    longer: share of answers longer than each edge of the bins, 1 at the first and 0 at the last.
    not_longer: their negatives, which ascend: a list, because single numbers of an array are slow to read.
    """

    longer: Floats
    not_longer: list[float]

    def quantile(self, share: float, generated_tokens: int) -> float:
        """Return the length that this share of the answers longer than `generated_tokens` does not exceed."""
        target = (1 - share) * self._longer_than(generated_tokens)
        above = min(bisect_right(self.not_longer, -target), BINS)
        low, high = -self.not_longer[above - 1], -self.not_longer[above]
        within = (low - target) / (low - high) if low > high else 1.0
        return EDGES[above - 1] + within * (EDGES[above] - EDGES[above - 1])

    def _longer_than(self, tokens: int) -> float:
        above = _bin_above(tokens)
        low, high = EDGES[above - 1], EDGES[above]
        longer, longer_below = -self.not_longer[above], -self.not_longer[above - 1]
        return longer + (longer_below - longer) * max((high - tokens) / (high - low), 0.0)


def _bin_above(tokens: float) -> int:
    """Return the index of the edge above a length; the last edge's if there is none."""
    return min(bisect_right(EDGES, tokens), BINS)


def _lengths(shares: Floats) -> Lengths:
    """Return the distribution with these shares of answers in its bins."""
    above = np.zeros(BINS + 1)
    shares[::-1].cumsum(out=above[1:])
    return Lengths(above[::-1], (-above[::-1]).tolist())


@dataclass(slots=True)
class _Counts:
    """Weights of answers by bin."""

    bins: Floats = field(default_factory=lambda: np.zeros(BINS))
    total: float = 0.0

    def add(self, first: int, shares: Floats, weight: float) -> None:
        """Add an answer: shares that sum to 1, in the bins from `first` on."""
        self.bins[first : first + len(shares)] += shares * weight
        self.total += weight

    def scale(self, factor: float) -> None:
        self.bins *= factor
        self.total *= factor

    def with_prior(self, shares: Floats, answer: float) -> Floats:
        """Return the shares by bin, with the level above as prior. answer: weight of one new answer."""
        prior = PRIOR_ANSWERS * answer
        return (self.bins + prior * shares) / (self.total + prior)


@dataclass(slots=True)
class _Tier:
    """Counts of one tier. `posterior` is computed from them on demand, until they change."""

    counts: _Counts = field(default_factory=_Counts)
    buckets: dict[int, _Counts] = field(default_factory=dict)
    answer: float = 1.0
    posterior: dict[int, Lengths] = field(default_factory=dict)


class LengthPredictor:
    """Learns lengths as answers finish. It is mutable: counts are updated in place.

    Memory is bounded by tiers × 18 prompt buckets × 129 bins.
    """

    def __init__(self) -> None:
        self._tiers: dict[str, _Tier] = {}

    def observe(self, tier: str, prompt_tokens: int, output_tokens: int, *, cut_short: bool = False) -> None:
        """Count a finished answer. cut_short: its token limit ended it."""
        known, bucket = self._tiers.get(tier), _prompt_bucket(prompt_tokens)
        if known is None:
            known = self._tiers[tier] = _Tier()
        counts = known.buckets.get(bucket)
        if counts is None:
            counts = known.buckets[bucket] = _Counts()
        index = _bin_above(max(output_tokens, 1) - 0.5) - 1
        shares = self._beyond(tier, prompt_tokens, index) if cut_short else WHOLE
        known.counts.add(index, shares, known.answer)
        counts.add(index, shares, known.answer)
        known.answer *= exp(1 / MEMORY_ANSWERS)
        known.posterior.clear()
        if known.answer > HEAVIEST_ANSWER:
            _bring_to_scale(known)

    def predict(
        self,
        tier: str,
        prompt_tokens: int,
        generated_tokens: int,
        most_tokens: int = LONGEST_TOKENS,
        *,
        quantile: float = PLANNING_QUANTILE,
    ) -> int:
        """Return the predicted length of an answer of which `generated_tokens` exist.

        It is above those, and otherwise at most `most_tokens`. Monotone in the generated tokens and in the
        quantile.
        """
        tokens = self._lengths(tier, prompt_tokens).quantile(quantile, generated_tokens)
        return max(ceil(min(tokens, most_tokens)), generated_tokens + 1)

    def sure(self, request: Request) -> int:
        """Return the length that an answer almost surely reaches.

        0 if thinking has its own TPOT target, because its end, where its last window is judged, is unknown.
        """
        if request.targets.answer_tpot_s is not None:
            return 0
        most_tokens = request.max_output_tokens
        return self.predict(request.tier, request.prompt_tokens, 0, most_tokens, quantile=SURE_QUANTILE)

    def _lengths(self, tier: str, prompt_tokens: int) -> Lengths:
        known = self._tiers.get(tier)
        if known is None:
            return PRIOR_LENGTHS
        bucket = _prompt_bucket(prompt_tokens)
        lengths = known.posterior.get(bucket)
        if lengths is None:
            lengths = _posterior(known, bucket)
            known.posterior[bucket] = lengths
        return lengths

    def _beyond(self, tier: str, prompt_tokens: int, index: int) -> Floats:
        """Return where an answer cut off in a bin would have ended: shares of the bins from it on."""
        longer = self._lengths(tier, prompt_tokens).longer[index:]
        shares: Floats = (longer[:-1] - longer[1:]) / longer[0]
        return shares


PRIOR_LENGTHS = _lengths(PRIOR)


def _prompt_bucket(prompt_tokens: int) -> int:
    return min(prompt_tokens.bit_length(), 17)


def _posterior(known: _Tier, bucket: int) -> Lengths:
    shares = known.counts.with_prior(PRIOR, known.answer)
    counts = known.buckets.get(bucket)
    return _lengths(shares if counts is None else counts.with_prior(shares, known.answer))


def _bring_to_scale(known: _Tier) -> None:
    for counts in (known.counts, *known.buckets.values()):
        counts.scale(1 / known.answer)
    known.answer = 1.0
