"""Which rate to try next, by what the rates before have shown: pure, so that it is tested without a server.

From a guess, rates grow or shrink by half until one attains and the next does not; then the bracket is
halved, in proportion, until it is narrow. Each rate costs a minute or two of a real server's time, so a
setting that only has to beat another begins a step above the other's capacity, and is dropped where it misses
that.
"""

from collections.abc import Generator
from math import sqrt
from typing import NamedTuple

GROWTH = 1.5
STEP = 1.05
"""How narrow a bracket is enough, and by how much a rival has to do better."""

MOST_STEPS = 12
"""Of the bracket: 130 times the guess, or a 130th of it."""


class Bracket(NamedTuple):
    """The highest rate that attains, and the lowest that does not. 0 and None where none was found."""

    low_rps: float = 0.0
    high_rps: float | None = None


Rates = Generator[float, bool, None]
"""Yields rates to try and is sent whether each attained."""


def rates(guess_rps: float, bar_rps: float = 0.0) -> Rates:
    """Rates that lead to a narrow bracket. bar_rps: a capacity to be beaten; 0 where there is none."""
    rate_rps = rounded(bar_rps * STEP if bar_rps else guess_rps)
    attains = yield rate_rps
    if bar_rps and not attains:
        return
    low_rps, high_rps = (rate_rps, 0.0) if attains else (0.0, rate_rps)
    for _ in range(MOST_STEPS):
        if low_rps and high_rps:
            break
        rate_rps = rounded(low_rps * GROWTH if low_rps else high_rps / GROWTH)
        if (yield rate_rps):
            low_rps = rate_rps
        else:
            high_rps = rate_rps
    while low_rps and high_rps > low_rps * STEP:
        middle_rps = rounded(sqrt(low_rps * high_rps))
        if (yield middle_rps):
            low_rps = middle_rps
        else:
            high_rps = middle_rps


def bracket_of(tried: dict[float, bool]) -> Bracket:
    """What rates that were tried say together: the highest under the lowest that failed."""
    failed = [rate_rps for rate_rps, attains in tried.items() if not attains]
    high_rps = min(failed, default=None)
    fine = [r for r, attains in tried.items() if attains and (high_rps is None or r < high_rps)]
    return Bracket(max(fine, default=0.0), high_rps)


def rounded(rate_rps: float) -> float:
    """Three digits: a rate that people can read, and that a journal finds again."""
    return float(f"{rate_rps:.3g}")
