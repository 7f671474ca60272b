"""Length distributions of which only mean, 99th percentile and standard deviation are published.

A plain log-normal cannot match all three: with the mean and deviation of the paper's thinking lengths, its
99th percentile is 24 % too high. So 99 % of the mass is a log-normal truncated at the percentile, and 1 % is
uniform from there to 10 % above it. The two parameters of the log-normal are solved for the published mean
and deviation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import erfc, exp, log, sqrt
from statistics import NormalDist

NORMAL = NormalDist()
TAIL_SHARE = 0.01
"""Share of lengths that are drawn from the tail."""
TAIL_WIDTH = 0.1
"""Width of the uniform tail, as a share of the 99th percentile."""

LEAST_MU = -20.0
"""Lower bound on `mu`, below that of any length distribution."""
SIGMA_RANGE = (0.02, 4.0)
"""Bounds on `sigma` of any length distribution."""
HALVINGS = 60
"""Bisection steps: more than the 53 bits of a double, so that roots are exact."""


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """A distribution of lengths. mu, sigma: parameters of the log-normal before its truncation at `p99`."""

    mu: float
    sigma: float
    p99: float

    def at(self, share: float) -> int:
        """Return the quantile at `share`, at least one token."""
        if share >= 1 - TAIL_SHARE:
            above = (share - (1 - TAIL_SHARE)) / TAIL_SHARE
            return round(self.p99 * (1 + TAIL_WIDTH * above))
        below_cut = _below((log(self.p99) - self.mu) / self.sigma)
        within = max(share / (1 - TAIL_SHARE) * below_cut, 1e-300)
        return max(round(exp(self.mu + self.sigma * NORMAL.inv_cdf(within))), 1)


def fitted(mean: float, p99: float, deviation: float) -> LengthDistribution:
    """Return the distribution with this mean, 99th percentile and standard deviation."""
    tail_mean = p99 * (1 + TAIL_WIDTH / 2)
    tail_square = tail_mean**2 + (p99 * TAIL_WIDTH) ** 2 / 12
    body_mean = (mean - TAIL_SHARE * tail_mean) / (1 - TAIL_SHARE)
    body_square = (deviation**2 + mean**2 - TAIL_SHARE * tail_square) / (1 - TAIL_SHARE)

    def most_mu(sigma: float) -> float:
        return log(p99) + 25 * sigma  # beyond it, all of the log-normal is above the truncation

    def mu_for(sigma: float) -> float:
        return _rising_root(lambda mu: _cut_moment(1, mu, sigma, p99) - body_mean, LEAST_MU, most_mu(sigma))

    sigma = _rising_root(lambda s: _cut_moment(2, mu_for(s), s, p99) - body_square, *SIGMA_RANGE)
    return LengthDistribution(mu_for(sigma), sigma, p99)


def deviation(lengths: list[int]) -> float:
    """Return the standard deviation of a sample."""
    mean = sum(lengths) / len(lengths)
    return sqrt(sum((length - mean) ** 2 for length in lengths) / len(lengths))


def _below(z: float) -> float:
    """Return the normal CDF at z, accurate in the lower tail, where `NormalDist.cdf` is 0."""
    return erfc(-z / sqrt(2)) / 2


def _cut_moment(power: int, mu: float, sigma: float, cut: float) -> float:
    """Return the mean of x^power under a truncated log-normal."""
    z = (log(cut) - mu) / sigma
    share = _below(z - power * sigma) / _below(z)
    return exp(power * mu + (power * sigma) ** 2 / 2) * share


def _rising_root(f: Callable[[float], float], low: float, high: float) -> float:
    """Return the root of an increasing function by bisection."""
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if f(middle) < 0 else (low, middle)
    return (low + high) / 2
