"""A profile: runs the plan repeatedly until its time is up, and fits a time model.

A single reading of a probe is noisy. So a probe's duration is the median of its readings without the
machine's drift (`drift`), and readings are repeated until it is accurate or the time is up. The deviation of
single readings from their median is the noise floor: no model predicts single iterations more accurately.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf, sqrt
from random import Random
from statistics import mean, median
from time import monotonic

from penstock_core.timing.fit import Fit, NoDuration, Point, TooFewPoints, fit

from penstock_profiler.drift import slowdowns
from penstock_profiler.engine import MeasuredEngine
from penstock_profiler.measure import TimingMethod, measured, mixed_prefill
from penstock_profiler.plan import FIRST_TOKEN, NEXT_TOKEN, PrefillProbe, Probe, ProfileLimits, plan

ROUNDS = 2
"""Rounds in which every probe is read. Further readings are chosen by their benefit and cost."""

TARGET_UNCERTAINTY = 0.005
"""Mean relative uncertainty of probes at which reading ends."""

LEAST_SPREAD = 0.01
"""Lower bound on the relative spread of readings; a smaller one is by chance."""

OVERHEAD_READINGS = 5
"""Readings of a request's overhead."""

MIXING_PROBE = PrefillProbe(64)
"""Prompt that tests whether an engine batches prefills with decodes."""

INACCURATE = 0.25
"""Mean error on held-out points from which a model is inaccurate. It is 3 to 10 % on idle machines."""

LEAST_PROBES = 8
"""Least number of measured probes, regardless of time; fewer do not determine a model."""

OnReading = Callable[[Probe, int], None]
"""Called before each reading with the probe and the number of previous readings."""


class NoTimeModel(Exception):
    """The measured probes determine no time model. The message has the engine's URL."""


@dataclass(frozen=True, slots=True)
class ProbeSummary:
    """All readings of a probe, as one point.

    times: number of readings. spread: their mean distance from the point, relative; 0 for a single one. Both
    without the machine's drift.
    """

    probe: Probe
    point: Point
    times: int
    spread: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The measured probes and the fitted model.

    overhead_s: overhead of a request outside of iterations, in seconds.
    noise: noise floor: mean relative deviation of single readings from their probe's median.
    """

    summaries: Sequence[ProbeSummary]
    overhead_s: float
    noise: float
    fit: Fit

    @property
    def inaccurate(self) -> bool:
        """Whether predictions are far off; then admission rejects or admits too much at first."""
        return self.fit.held_out.mean_error >= INACCURATE

    @property
    def noise_without_drift(self) -> float:
        """Noise floor without the machine's drift."""
        return mean([summary.spread for summary in self.summaries if summary.times > 1] or [0.0])


def _ignore(probe: Probe, readings: int) -> None:
    pass


async def profile(
    engine: MeasuredEngine, limits: ProfileLimits, seconds: float, on_reading: OnReading = _ignore
) -> Profile:
    """Measure an idle engine for `seconds`, or as long as the first probes take.

    Raises EngineError, NoTimeModel.
    """
    until_s, random = monotonic() + seconds, Random()  # unseeded, so that no prompt is in a cache
    method, read = await _timing_method(engine, random), Readings()
    probes = plan(limits)
    for number, probe in enumerate(read.order(probes)):
        if monotonic() >= until_s and (len(read.points) >= LEAST_PROBES or number >= len(probes)):
            break
        on_reading(probe, number)
        began_s = monotonic()
        point = await measured(engine, probe, method, random)
        read.add(probe, point, monotonic() - began_s)
    summaries = [summarize(probe, found) for probe, found in read.without_drift().items()]
    try:
        fitted = fit("profiled", [summary.point for summary in summaries])
    except TooFewPoints as error:
        raise NoTimeModel(
            f"{engine.url}: {error}; the engine ends answers early or accepts few requests"
        ) from error
    except NoDuration as error:
        raise NoTimeModel(f"{engine.url}: {error}") from error
    return Profile(summaries, method.overhead_s, read.noise, fitted)


class Readings:
    """All readings so far, which determine the next probe. points: points by probe."""

    def __init__(self) -> None:
        self.points: dict[Probe, list[Point]] = {}
        self._by_time: list[tuple[Probe, Point]] = []
        self._took_s: dict[Probe, list[float]] = {}

    def add(self, probe: Probe, point: Point | None, took_s: float) -> None:
        """Add a reading; None if the probe gave no point."""
        if point is not None:
            self.points.setdefault(probe, []).append(point)
            self._by_time.append((probe, point))
            self._took_s.setdefault(probe, []).append(took_s)

    @property
    def noise(self) -> float:
        """Mean spread of probes with several readings."""
        return mean([_spread(points) for points in self.points.values() if len(points) > 1] or [0.0])

    def without_drift(self) -> dict[Probe, list[Point]]:
        """Return the points by probe without the machine's drift."""
        found: dict[Probe, list[Point]] = {}
        at = slowdowns([(probe, point.seconds) for probe, point in self._by_time])
        for (probe, point), slowdown in zip(self._by_time, at, strict=True):
            found.setdefault(probe, []).append(Point(point.work, point.seconds / slowdown))
        return found

    def order(self, probes: Sequence[Probe]) -> Iterator[Probe]:
        """Yield every probe `ROUNDS` times, then the one that most needs a reading, until all are accurate.

        Ends if no probe could be read.
        """
        for _ in range(ROUNDS):
            yield from probes
        while self.points and uncertainty(self.points.values()) > TARGET_UNCERTAINTY:
            usual_spread = max(mean([_spread(points) for points in self.points.values()]), LEAST_SPREAD)
            yield max(self.points, key=partial(self._worth, usual_spread))

    def _worth(self, usual_spread: float, probe: Probe) -> float:
        """Return the uncertainty that one more reading would remove, per second that it takes.

        The spread of a few readings is itself uncertain, so the mean spread of all probes has equal weight.
        """
        points = self.points[probe]
        more = 1 / sqrt(len(points)) - 1 / sqrt(len(points) + 1)
        return (_spread(points) + usual_spread) * more / mean(self._took_s[probe])


def uncertainty(readings: Iterable[Sequence[Point]]) -> float:
    """Return the mean expected error of the probes' medians, relative; infinite without readings.

    The standard error of a median of n normal readings is 1.25 times that of their mean, which is the spread
    of single readings over the root of n.
    """
    errors = [1.25 * _spread(points) / sqrt(len(points)) for points in readings]
    return mean(errors) if errors else inf


def summarize(probe: Probe, points: Sequence[Point]) -> ProbeSummary:
    """Return the probe's readings as one point: the median duration, with the work of the nearest reading."""
    middle_s = median(point.seconds for point in points)
    nearest = min(points, key=lambda point: abs(point.seconds - middle_s))
    return ProbeSummary(probe, Point(nearest.work, middle_s), len(points), _spread(points))


def _spread(points: Sequence[Point]) -> float:
    """Return the mean distance from the median, as a share of it."""
    middle_s = median(point.seconds for point in points)
    return mean(abs(point.seconds / middle_s - 1) for point in points)


async def _timing_method(engine: MeasuredEngine, random: Random) -> TimingMethod:
    """Measure how to time this engine."""
    overhead_s = await _overhead_s(engine, random)
    if (await engine.drafts()).drafted:  # drafts of one decode among prefills are not reported
        return TimingMethod(overhead_s, mixes=False)
    points = [await mixed_prefill(engine, MIXING_PROBE, random) for _ in range(OVERHEAD_READINGS)]
    return TimingMethod(overhead_s, mixes=sum(point is not None for point in points) > OVERHEAD_READINGS // 2)


async def _overhead_s(engine: MeasuredEngine, random: Random) -> float:
    """Return the overhead of a request: the time of a first token less that of any other."""
    overheads_s, unknown = [], TimingMethod(0.0, mixes=False)
    for _ in range(OVERHEAD_READINGS):
        first = await measured(engine, FIRST_TOKEN, unknown, random)
        following = await measured(engine, NEXT_TOKEN, unknown, random)
        if first is not None and following is not None:
            overheads_s.append(first.seconds - following.seconds)
    return max(median(overheads_s), 0.0) if overheads_s else 0.0
