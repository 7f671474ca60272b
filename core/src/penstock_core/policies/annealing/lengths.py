"""Lengths of answers as a Gaussian per kind of task [annealing, §4.2, §5.1].

The paper's length sampler: mean and deviation of finished answers are tracked online for each type of task,
and the length of a new request is drawn from them. Here the tracked quantity is the length's share of the
predicted length: a job already has a prediction, a high quantile from its prompt and tier, which is better
than a Gaussian and deliberately long. The mean share turns it into an expected length; with known lengths
the share is 1, without deviation.

Functions are pure: random draws depend on a seed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import cos, log, pi, sqrt

from penstock_core.timing.learned_tiers import with_latest

MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Observations of one kind of task (Welford's algorithm).

    `squares`: sum of squared deviations from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """Return the standard deviation; 0 for fewer than two observations."""
        return sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0

    def observe(self, value: float) -> "Gaussian":
        """Return the Gaussian after one more observation."""
        count = self.count + 1
        mean = self.mean + (value - self.mean) / count
        return Gaussian(count, mean, self.squares + (value - self.mean) * (value - mean))

    def draw(self, seed: int, spread: float = 1.0) -> float:
        """Draw a value, the same for the same seed, with the deviation multiplied by `spread`."""
        return self.mean + spread * self.deviation * standard_normal(seed) if spread else self.mean


Kinds = Mapping[str, Gaussian]
"""Gaussians by kind of task."""

AS_PREDICTED = Gaussian(1, 1.0)
"""Initial share: one answer exactly as long as predicted."""


def observed(kinds: Kinds, kind: str, share: float) -> Kinds:
    """Return the state after an answer of this kind with this share of its predicted length."""
    return with_latest(kinds, {kind: kinds.get(kind, AS_PREDICTED).observe(share)})


def standard_normal(seed: int) -> float:
    """Return a number of mean 0 and deviation 1 (Box-Muller), the same for the same seed."""
    first, second = _mixed(2 * seed), _mixed(2 * seed + 1)
    radius = sqrt(-2 * log((first + 1) / (MASK + 1)))
    return radius * cos(2 * pi * second / (MASK + 1))


def _mixed(counter: int) -> int:
    """Return 64 pseudo-random bits for a counter (splitmix64)."""
    bits = (counter + 1) * 0x9E3779B97F4A7C15 & MASK
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9 & MASK
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB & MASK
    return bits ^ bits >> 31
