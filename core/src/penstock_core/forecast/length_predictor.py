"""How long an answer will be, from the lengths of those that have finished [SOLA, §4.3].

Answers of one tier to prompts of like length are alike, so lengths are counted per tier and per power of
two of prompt tokens. A prediction is a quantile of the lengths longer than what is already there: an answer
that has outlived most is expected to be one of the long ones. Planning wants a high quantile, because an
answer that outgrows its prediction takes memory that was promised to others.

Counts are few at first, so each level leans on the one above it, with the weight of a few answers: a prompt
bucket on its tier, the tier on a prior. The prior is the chat service in the Azure 2023 trace (mean 211,
median 129 output tokens): lognormal with median 128 and sigma 1, which has the same mean and the 0.9
quantile at 461.

Lengths are kept as counts in bins that grow by a tenth, uniform within a bin. Old answers fade: a newer one
weighs more by a little each time, which is the same as forgetting and costs nothing. An answer cut short by
its token limit says only that it was longer: its weight goes to longer lengths, as they are believed to be.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise
from math import ceil, erf, exp, log, sqrt
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock_core.domain.request import Request

Floats = npt.NDArray[np.float64]

PLANNING_QUANTILE = 0.9
SURE_QUANTILE = 0.02
"""Where one answer in fifty is shorter, the others are sure to be as long."""

PRIOR_MEDIAN_TOKENS, PRIOR_SIGMA = 128.0, 1.0
LEAN_ANSWERS = 20.0
"""How many answers of its own a level needs to outweigh the level above it."""

MEMORY_ANSWERS = 2000.0
"""Answers of a tier after which one has faded to a third."""

LONGEST_TOKENS = 1 << 18
"""Longer answers are not told apart."""

BINS_PER_DOUBLING = 8
HEAVIEST_ANSWER = 1e12
"""Weight of a new answer at which a tier's counts are brought back to scale."""


def _bin_edges() -> list[float]:
    """From 0 by ones, then by a tenth, to the longest answer there is."""
    edges = [0.0]
    while edges[-1] < LONGEST_TOKENS:
        edges.append(max(edges[-1] + 1, round(edges[-1] * 2 ** (1 / BINS_PER_DOUBLING))))
    return edges


EDGES = _bin_edges()
BINS = len(EDGES) - 1
WHOLE = np.ones(1)
MIDDLES = np.array([(below + above) / 2 for below, above in pairwise(EDGES)])


def _prior_longer(tokens: float) -> float:
    """Share of answers that are longer, before any has been seen."""
    if tokens <= 0:
        return 1.0
    return 0.5 * (1 - erf(log(tokens / PRIOR_MEDIAN_TOKENS) / (PRIOR_SIGMA * sqrt(2))))


PRIOR = np.array([_prior_longer(below) - _prior_longer(above) for below, above in pairwise(EDGES)])


class Lengths(NamedTuple):
    """A distribution of lengths, told from its end: what lies above each edge of the bins.

    longer: share of answers longer than the edge, 1 at the first and 0 at the last.
    moment: their share times their mean length.
    """

    longer: Floats
    moment: Floats

    def quantile(self, share: float, generated_tokens: int) -> float:
        """The length that this share of the answers longer than `generated_tokens` stays within."""
        target = (1 - share) * self._longer_than(generated_tokens)
        above = min(int(np.searchsorted(-self.longer, -target, side="right")), BINS)
        low, high = float(self.longer[above - 1]), float(self.longer[above])
        within = (low - target) / (low - high) if low > high else 1.0
        return EDGES[above - 1] + within * (EDGES[above] - EDGES[above - 1])

    def mean(self, generated_tokens: int, most_tokens: int) -> float:
        """Mean of the answers longer than `generated_tokens`, each counted as `most_tokens` at most."""
        left = self._longer_than(generated_tokens)
        if left <= 0:
            return float(most_tokens)
        moment = self._moment_above(generated_tokens) - self._moment_above(most_tokens)
        return (moment + most_tokens * self._longer_than(most_tokens)) / left

    def _longer_than(self, tokens: int) -> float:
        above = _bin_above(tokens)
        low, high = EDGES[above - 1], EDGES[above]
        return float(
            self.longer[above]
            + (self.longer[above - 1] - self.longer[above]) * max((high - tokens) / (high - low), 0.0)
        )

    def _moment_above(self, tokens: int) -> float:
        above = _bin_above(tokens)
        low, high = EDGES[above - 1], EDGES[above]
        return float(
            self.moment[above]
            + (self.moment[above - 1] - self.moment[above])
            * max((high**2 - tokens**2) / (high**2 - low**2), 0.0)
        )


def _bin_above(tokens: float) -> int:
    """Index of the edge above a length; of the last edge where there is none."""
    return min(bisect_right(EDGES, tokens), BINS)


def _lengths(shares: Floats) -> Lengths:
    """The distribution with these shares of answers in its bins."""
    return Lengths(_sum_above(shares), _sum_above(shares * MIDDLES))


def _sum_above(parts: Floats) -> Floats:
    """Return for each edge the sum of the parts in the bins above it."""
    sums = np.zeros(BINS + 1)
    np.cumsum(parts[::-1], out=sums[1:])
    return sums[::-1]


@dataclass(slots=True)
class _Counts:
    """Weights of answers by bin."""

    bins: Floats = field(default_factory=lambda: np.zeros(BINS))
    total: float = 0.0

    def add(self, first: int, shares: Floats, weight: float) -> None:
        """An answer: shares of it, which are 1 together, in the bins from `first` on."""
        self.bins[first : first + len(shares)] += shares * weight
        self.total += weight

    def scale(self, factor: float) -> None:
        self.bins *= factor
        self.total *= factor

    def leaning_on(self, shares: Floats, answer: float) -> Floats:
        """Shares by bin, where one new answer weighs `answer`, and the level above as much as a few."""
        lean = LEAN_ANSWERS * answer
        return (self.bins + lean * shares) / (self.total + lean)


@dataclass(slots=True)
class _Tier:
    """What is known of one tier. `believed` is made from the counts when asked for, until they change."""

    counts: _Counts = field(default_factory=_Counts)
    buckets: dict[int, _Counts] = field(default_factory=dict)
    answer: float = 1.0
    believed: dict[int, Lengths] = field(default_factory=dict)


class LengthPredictor:
    """Learns lengths as answers finish. Not a value: it keeps its counts and changes them in place.

    Memory is bounded by tiers × 18 prompt buckets × 129 bins.
    """

    def __init__(self) -> None:
        self._tiers: dict[str, _Tier] = {}

    def observe(self, tier: str, prompt_tokens: int, output_tokens: int, *, cut_short: bool = False) -> None:
        """An answer has finished; `cut_short` where its token limit ended it."""
        known = self._tiers.setdefault(tier, _Tier())
        bucket = _prompt_bucket(prompt_tokens)
        counts = known.buckets.setdefault(bucket, _Counts())
        index = _bin_above(max(output_tokens, 1) - 0.5) - 1
        shares = self._beyond(tier, prompt_tokens, index) if cut_short else WHOLE
        known.counts.add(index, shares, known.answer)
        counts.add(index, shares, known.answer)
        known.answer *= exp(1 / MEMORY_ANSWERS)
        known.believed.clear()
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
        """The whole length of an answer of which `generated_tokens` are there.

        More than those, and otherwise at most `most_tokens`. Never falls as an answer grows, nor as the
        quantile rises.
        """
        tokens = self._lengths(tier, prompt_tokens).quantile(quantile, generated_tokens)
        return max(ceil(min(tokens, most_tokens)), generated_tokens + 1)

    def sure(self, request: Request) -> int:
        """What its answer is almost surely not shorter than.

        0 where thinking has a pace of its own, whose last window is judged: nobody can tell where it ends.
        """
        if request.targets.answer_tpot_s is not None:
            return 0
        most_tokens = request.max_output_tokens
        return self.predict(request.tier, request.prompt_tokens, 0, most_tokens, quantile=SURE_QUANTILE)

    def mean(
        self, tier: str, prompt_tokens: int, generated_tokens: int, most_tokens: int = LONGEST_TOKENS
    ) -> float:
        """The mean length of such an answer. `most_tokens` is above `generated_tokens`."""
        return self._lengths(tier, prompt_tokens).mean(generated_tokens, most_tokens)

    def _lengths(self, tier: str, prompt_tokens: int) -> Lengths:
        known = self._tiers.get(tier)
        if known is None:
            return PRIOR_LENGTHS
        bucket = _prompt_bucket(prompt_tokens)
        lengths = known.believed.get(bucket)
        if lengths is None:
            lengths = _believe(known, bucket)
            known.believed[bucket] = lengths
        return lengths

    def _beyond(self, tier: str, prompt_tokens: int, index: int) -> Floats:
        """Where an answer cut off in a bin would have ended: shares of the bins from it on."""
        longer = self._lengths(tier, prompt_tokens).longer[index:]
        shares: Floats = (longer[:-1] - longer[1:]) / longer[0]
        return shares


PRIOR_LENGTHS = _lengths(PRIOR)


def _prompt_bucket(prompt_tokens: int) -> int:
    return min(prompt_tokens.bit_length(), 17)


def _believe(known: _Tier, bucket: int) -> Lengths:
    shares = known.counts.leaning_on(PRIOR, known.answer)
    counts = known.buckets.get(bucket)
    return _lengths(shares if counts is None else counts.leaning_on(shares, known.answer))


def _bring_to_scale(known: _Tier) -> None:
    for counts in (known.counts, *known.buckets.values()):
        counts.scale(1 / known.answer)
    known.answer = 1.0
