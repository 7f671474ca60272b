"""How sure a share of so many requests is."""

from math import sqrt
from typing import NamedTuple

Z_95 = 1.96
"""Deviations of a normal distribution within which 95 % lie."""


class Interval(NamedTuple):
    """Where a share lies."""

    low: float
    high: float


def wilson(hits: int, of: int) -> Interval:
    """Wilson's 95 % interval of a share that was seen as `hits` of `of`.

    It takes requests as independent. Those of one burst are not, so it is narrower than the truth.
    """
    share, z2 = hits / of, Z_95**2
    middle = (share + z2 / (2 * of)) / (1 + z2 / of)
    reach = Z_95 / (1 + z2 / of) * sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return Interval(middle - reach, middle + reach)
