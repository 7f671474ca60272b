"""Disturbances of an engine: changes of speed, occasional slow steps, and errors by kind of token.

Causes are throttled clocks, other loads on memory bandwidth or cores, a stalled host, and engines that differ
from the profiled one, with slower prefills and faster decodes than fitted. Every measured ground truth has
mild noise (`noise`). Disturbances are larger, and off by default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from random import Random

from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.engine_timing.ground_truth import GroundTruth


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """Every iteration that starts in [`start_s`, `end_s`) takes `factor` times as long."""

    start_s: float
    end_s: float = inf
    factor: float = 2.0

    def __post_init__(self) -> None:
        """Raise ValueError if the factor is not positive and finite."""
        _check_factor(self.factor)

    def at(self, at_s: float) -> float:
        """Return the factor of an iteration that starts at `at_s` seconds."""
        return self.factor if self.start_s <= at_s < self.end_s else 1.0


@dataclass(frozen=True, slots=True)
class SlowSteps:
    """Each iteration takes `factor` times as long with probability `chance`, independently of all others."""

    chance: float = 0.02
    factor: float = 4.0

    def __post_init__(self) -> None:
        """Raise ValueError if the chance is not a probability or the factor not positive and finite."""
        _check_factor(self.factor)
        if not 0.0 <= self.chance <= 1.0:
            raise ValueError(f"a chance of {self.chance} is not within 0 and 1")


@dataclass(frozen=True, slots=True)
class KindFactors:
    """Decodes take `decode` times as long, and what prefill chunks add to an iteration `prefill` times."""

    decode: float = 1.0
    prefill: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError if a factor is not positive and finite."""
        _check_factor(self.decode)
        _check_factor(self.prefill)

    def seconds(self, truth: GroundTruth, shape: BatchShape, at_s: float) -> float:
        """Return the duration of an iteration; of one with both, two draws of the truth's noise."""
        whole_s = truth.seconds(shape, at_s)
        if not shape.decodes:
            return self.prefill * whole_s
        decodes_s = truth.seconds(shape._replace(chunks=()), at_s) if shape.chunks else whole_s
        return self.decode * decodes_s + self.prefill * max(whole_s - decodes_s, 0.0)


@dataclass(frozen=True, slots=True)
class Disturbance:
    """The disturbances of an engine; none by default."""

    speed_changes: Sequence[SpeedChange] = ()
    slow_steps: SlowSteps | None = None
    kinds: KindFactors | None = None


@dataclass(frozen=True, slots=True)
class DisturbedTruth:
    """A ground truth with a disturbance. Stateful: every call is the next iteration.

    random: decides which steps are slow.
    """

    truth: GroundTruth
    disturbance: Disturbance
    random: Random

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Return the undisturbed duration times the factors of this iteration."""
        kinds = self.disturbance.kinds
        seconds = kinds.seconds(self.truth, shape, at_s) if kinds else self.truth.seconds(shape, at_s)
        for change in self.disturbance.speed_changes:
            seconds *= change.at(at_s)
        slow = self.disturbance.slow_steps
        if slow is not None and self.random.random() < slow.chance:
            seconds *= slow.factor
        return seconds


def disturbed(truth: GroundTruth, disturbance: Disturbance, seed: int) -> GroundTruth:
    """Return the ground truth with this disturbance: itself if there is none."""
    if disturbance == Disturbance():
        return truth
    return DisturbedTruth(truth, disturbance, Random(f"disturbance {seed}"))


def _check_factor(factor: float) -> None:
    if not (isfinite(factor) and factor > 0):
        raise ValueError(f"a factor of {factor} is not positive and finite")
