"""Removes a machine's drift from readings.

A shared or warm machine is slower or faster for seconds at a time, which affects all probes read meanwhile.
So readings are separated into the probe's duration and the machine's slowdown by median polish [Tukey,
Exploratory Data Analysis, 1977]: a probe's duration is the median of its readings divided by their slowdowns;
the slowdown at a reading is the median of it and its neighbours in time divided by their probes' durations;
alternately.
"""

from collections.abc import Hashable, Sequence
from statistics import median
from typing import TypeVar

NEIGHBOURS = 4
"""Readings before and after one that share its slowdown: a second or two."""

POLISH_ROUNDS = 4
"""Rounds of the median polish; the second already changes little."""

Probe = TypeVar("Probe", bound=Hashable)


def slowdowns(readings: Sequence[tuple[Probe, float]]) -> list[float]:
    """Return the machine's slowdown at each reading, 1 if usual. Readings are (probe, seconds) by time."""
    found = [1.0] * len(readings)
    for _ in range(POLISH_ROUNDS):
        usual_s = _usual_s(readings, found)
        slower = [seconds / usual_s[probe] for probe, seconds in readings]
        found = [median(slower[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS + 1]) for at in range(len(readings))]
    return found


def _usual_s(readings: Sequence[tuple[Probe, float]], found: Sequence[float]) -> dict[Probe, float]:
    """Return the duration of each probe at the usual speed."""
    without_drift: dict[Probe, list[float]] = {}
    for (probe, seconds), slowdown in zip(readings, found, strict=True):
        without_drift.setdefault(probe, []).append(seconds / slowdown)
    return {probe: median(all_s) for probe, all_s in without_drift.items()}
