"""A whole profile: the plan, round after round until time is up, and a model of what was measured.

One reading of a probe is as noisy as the machine. So a probe's time is the median of its readings, which are
taken again until it is known well enough or time is up. How far single readings lie from it is the noise
floor: no model can be closer than that to single iterations.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from random import Random
from statistics import mean, median
from time import monotonic

from penstock_core.time_model_fit import Fit, Point, TooFewPoints, fit

from penstock_profiler.engine import Engine
from penstock_profiler.measure import measured
from penstock_profiler.plan import ALONE, THROUGH, Limits, Probe, plan

LEAST_ROUNDS, MOST_ROUNDS = 3, 25
ENOUGH = 0.005
"""How uncertain probes' times may be on average, relative: less is not worth another round."""

WAYS = 5
"""Readings of what a request takes on its way."""

LEAST_PROBES = 8
"""Measured however long they take: a model of fewer says nothing."""

Told = Callable[[Probe, int, int], None]
"""Called before each probe, with its number and how many there are in the round."""


class TooLittle(Exception):
    """The engine did not do enough of what it was asked for to fit a model to."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A probe's readings, as one point.

    times: how many there were. spread: their mean distance from the point, relative; 0 for a single one.
    """

    probe: Probe
    point: Point
    times: int
    spread: float


@dataclass(frozen=True, slots=True)
class Profile:
    """What was measured, and its model. way_s: what a request takes on its way, beside the engine's work."""

    readings: Sequence[Reading]
    way_s: float
    fit: Fit

    @property
    def noise(self) -> float:
        """The noise floor: mean spread of the readings that were taken more than once."""
        return mean([reading.spread for reading in self.readings if reading.times > 1] or [0.0])


def _say_nothing(probe: Probe, number: int, of: int) -> None:
    pass


async def profile(
    engine: Engine, limits: Limits, seconds: float, *, seed: int = 0, told: Told = _say_nothing
) -> Profile:
    """Measure an engine that does nothing else, for so many seconds, or as long as the first probes take.

    Raises EngineError, TooLittle.
    """
    until_s, random = monotonic() + seconds, Random(seed)
    points = defaultdict[Probe, list[Point]](list)
    probes, way_s = plan(limits), await _way_s(engine, random)
    for done in range(MOST_ROUNDS):
        if done >= LEAST_ROUNDS and uncertainty(points.values()) <= ENOUGH:
            break
        for number, probe in enumerate(probes):
            if monotonic() >= until_s and len(points) >= LEAST_PROBES:
                break
            told(probe, number, len(probes))
            point = await measured(engine, probe, way_s, random)
            if point is not None:
                points[probe].append(point)
            await asyncio.sleep(0)
    readings = [reading(probe, found) for probe, found in points.items()]
    try:
        return Profile(readings, way_s, fit("profiled", [reading.point for reading in readings]))
    except TooFewPoints as error:
        raise TooLittle(f"{engine.url}: {error}; it ends answers early or takes few requests") from error


def uncertainty(readings: Iterable[Sequence[Point]]) -> float:
    """How far the median of each probe's readings is from what more of them would come to, on average.

    Relative; infinite where there is nothing to say. A median of n readings strays 1.25 times as far as their
    mean, which strays as far as a single one by the root of n.
    """
    strays = []
    for points in readings:
        middle_s = median(point.seconds for point in points)
        spread = mean(abs(point.seconds / middle_s - 1) for point in points)
        strays.append(1.25 * spread / sqrt(len(points)))
    return mean(strays) if strays else inf


def reading(probe: Probe, points: Sequence[Point]) -> Reading:
    """The probe's readings as one."""
    middle_s = median(point.seconds for point in points)
    nearest = min(points, key=lambda point: abs(point.seconds - middle_s))
    spread = mean(abs(point.seconds / middle_s - 1) for point in points)
    return Reading(probe, Point(nearest.work, middle_s), len(points), spread)


async def _way_s(engine: Engine, random: Random) -> float:
    """What a request takes beside its iterations: a first token's time less that of any other."""
    ways_s = []
    for _ in range(WAYS):
        seen = await measured(engine, THROUGH, 0.0, random)
        gap = await measured(engine, ALONE, 0.0, random)
        if seen is not None and gap is not None:
            ways_s.append(seen.seconds - gap.seconds)
    return max(median(ways_s), 0.0) if ways_s else 0.0
