"""How long answers get, as a Gaussian per kind of task [annealing, §4.2, §5.1].

The paper's length sampler: the mean and spread of what has finished, followed online for each type of task,
and for a new request a number drawn from them. It works on any quantity. Here that is not the length but its
share of the length that was predicted: a job comes with a quantile of its own length, made from its prompt
and its tier by a better predictor than a Gaussian is, on the long side on purpose. The mean share takes it
back to what is to be expected, and where lengths are known it is one, with no spread.

Values, no state: the draws come from a seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, log, pi, sqrt

from penstock_core.timing.learned_tiers import with_latest

MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Gaussian:
    """What was seen of one kind of task (Welford's sums). `squares`: of the distances to the mean."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation of what was seen; 0 for fewer than two."""
        return sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def observe(self, value: float) -> "Gaussian":
        """After one more."""
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        return Gaussian(count, mean, self.squares + (value - self.mean) * (value - mean))

    def draw(self, seed: int, spread: float = 1.0) -> float:
        """A value from the distribution, the same for the same seed; with this share of its spread."""
        return self.mean + spread * self.deviation * standard_normal(seed) if spread else self.mean


Kinds = Mapping[str, Gaussian]
"""What was seen, by kind of task."""

AS_PREDICTED = Gaussian(1, 1.0)
"""Shares before anything has finished: one answer, exactly as long as predicted."""


def observed(kinds: Kinds, kind: str, share: float) -> Kinds:
    """After an answer of this kind that took this share of its predicted length."""
    return with_latest(kinds, {kind: kinds.get(kind, AS_PREDICTED).observe(share)})


def standard_normal(seed: int) -> float:
    """A number of mean 0 and deviation 1 (Box and Muller), the same for the same seed."""
    first, second = _mixed(2 * seed), _mixed(2 * seed + 1)
    radius = sqrt(-2 * log((first + 1) / (MASK + 1)))
    return radius * cos(2 * pi * second / (MASK + 1))


def _mixed(counter: int) -> int:
    """64 bits that look random, one number for each counter (splitmix64)."""
    bits = (counter + 1) * 0x9E3779B97F4A7C15 & MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & MASK
    return bits ^ bits >> 31
