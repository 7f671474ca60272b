"""Confidence intervals of a share of requests."""

from math import sqrt
from typing import NamedTuple

Z_95 = 1.96
"""Quantile of the normal distribution for a two-sided 95 % interval."""


class Interval(NamedTuple):
    """An interval of a share, from 0 to 1."""

    low: float
    high: float


def wilson(hits: int, of: int) -> Interval:
    """Return Wilson's 95 % interval of a share, of which `hits` of `of` were observed.

    It assumes independent requests. Requests of one burst are not, so the true interval is wider.
    """
    share, z2 = hits / of, Z_95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    reach = Z_95 / (1 + z2 / of) * sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return Interval(middle - reach, middle + reach)
