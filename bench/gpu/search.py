"""Chooses the next rate from the results of the previous ones; pure, so it is tested without a server.

From a guess, rates grow or shrink by half until one attains and the next does not; then the bracket is
bisected geometrically until it is narrow. Each rate takes a minute or two of a real server's time. So the
search of a setting that must exceed another begins a step above the other's capacity, and ends if it misses.
"""

from collections.abc import Generator, Sequence
from math import sqrt
from typing import NamedTuple

GROWTH = 1.5
STEP = 1.05
"""Ratio at which a bracket is narrow enough, and by which a setting must exceed another."""

MOST_STEPS = 12
"""Most steps of the bracket: up to 130 times the guess, or a 130th of it."""


class Bracket(NamedTuple):
    """The highest rate that attains (0 for none), and the lowest that does not (None for none)."""

    low_rps: float = 0.0
    high_rps: float | None = None


Rates = Generator[float, bool, None]
"""Yields rates to try, and is sent whether each attained."""


def rates(guess_rps: float, bar_rps: float = 0.0) -> Rates:
    """Yield rates until the bracket is narrow. bar_rps: capacity to exceed; 0 for none."""
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


def given(rates_rps: Sequence[float]) -> Rates:
    """Yield given rates, whatever attains, so that all ways are compared at the same ones."""
    for rate_rps in rates_rps:  # noqa: UP028 - `yield from` would send results to the list
        yield rate_rps


def bracket_of(tried: dict[float, bool]) -> Bracket:
    """Return the bracket of tried rates: the highest that attained below the lowest that did not."""
    failed = [rate_rps for rate_rps, attains in tried.items() if not attains]
    high_rps = min(failed, default=None)
    fine = [r for r, attains in tried.items() if attains and (high_rps is None or r < high_rps)]
    return Bracket(max(fine, default=0.0), high_rps)


def rounded(rate_rps: float) -> float:
    """Round to three digits, so that rates are readable and repeat in the journal."""
    return float(f"{rate_rps:.3g}")
