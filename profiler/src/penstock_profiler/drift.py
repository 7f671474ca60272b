"""What a machine's changing pace does to readings, taken out of them.

A machine that others use, or that gets warm, is faster and slower for seconds at a time, and with it every
probe that is read meanwhile. So readings are taken apart into what the probe takes and how the machine was
paced, by median polish [Tukey, Exploratory Data Analysis, 1977]: a probe's time is the median of its readings
over their paces; the pace at a reading is the median of what it and its neighbours in time took over their
probes' times; and so on in turn.
"""

from collections.abc import Hashable, Sequence
from statistics import median
from typing import TypeVar

NEIGHBOURS = 4
"""Readings before one, and after it, that share its pace: a second or two."""

TURNS = 4
"""Enough: the second changes little."""

Probe = TypeVar("Probe", bound=Hashable)


def paces(readings: Sequence[tuple[Probe, float]]) -> list[float]:
    """How slow the machine was at each reading; usual is 1. Readings are (probe, seconds), as time went."""
    found = [1.0] * len(readings)
    for _ in range(TURNS):
        usual_s = _usual_s(readings, found)
        slower = [seconds / usual_s[probe] for probe, seconds in readings]
        found = [median(slower[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS + 1]) for at in range(len(readings))]
    return found


def _usual_s(readings: Sequence[tuple[Probe, float]], found: Sequence[float]) -> dict[Probe, float]:
    """What each probe takes at the usual pace."""
    steady: dict[Probe, list[float]] = {}
    for (probe, seconds), pace in zip(readings, found, strict=True):
        steady.setdefault(probe, []).append(seconds / pace)
    return {probe: median(all_s) for probe, all_s in steady.items()}
