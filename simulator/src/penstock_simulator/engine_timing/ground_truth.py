"""Ground truth: the true duration of iterations on the simulated engine, which the planner cannot read.

The planner's time model is a maximum of two linear functions plus two slopes
(`penstock_core.timing.time_model`). The ground truth differs from it as a GPU does: kernel times from
measured tables, with steps and bends (`kernel_times`), times noise and drift (`noise`). The paper's
engines (`slos-serve-*`) have no public tables: their ground truth uses the paper's coefficients, as the
planner does, with tile steps of ±8 %. The planner's error is small there, so results should be confirmed on
an engine with tables.

`ExactTruth` is the planner's model itself, for runs that test the guarantee under a correct model.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.engine_timing.batch_shape import BatchShape
from penstock_simulator.engine_timing.kernel_times import kernel_times, measured
from penstock_simulator.engine_timing.noise import TimingNoise

TILE_TOKENS = 128
"""Tokens of a tile of the matrix kernels."""
TILE_STEP = 0.08
"""Share by which a model without tables is slower at a tile's first token, and faster at its last."""


class GroundTruth(Protocol):
    """An engine's timing."""

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Return the duration of the iteration that starts at `at_s` seconds; 0 if it is empty."""


class TruthKind(StrEnum):
    """Kinds of ground truth."""

    MEASURED = "measured"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class ExactTruth:
    """The planner's time model without any deviation."""

    model: TimeModel

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Return the model's duration, which does not depend on the time."""
        return self.model.seconds(shape.work())


@dataclass(frozen=True, slots=True)
class MeasuredTruth:
    """Kernel times with noise. Stateful: every call is the next iteration."""

    noiseless_s: Callable[[BatchShape], float]
    noise: TimingNoise

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Return the kernel times with this iteration's noise and the drift at `at_s`."""
        return self.noiseless_s(shape) * self.noise.factor(at_s)


def noiseless(name: str) -> Callable[[BatchShape], float]:
    """Return the noiseless duration function of a built-in time model. Raises UnknownTimeModel."""
    model = time_model(name)
    if measured(name):
        return kernel_times(name).seconds
    return lambda shape: tiled_seconds(model, shape)


def tiled_seconds(model: TimeModel, shape: BatchShape) -> float:
    """Return a model's duration with its tokens scaled by the unused part of their last tile."""
    work = shape.work()
    empty = -work.tokens % TILE_TOKENS / TILE_TOKENS
    return model.seconds(work._replace(tokens=round(work.tokens * (1 + TILE_STEP * (2 * empty - 1)))))


def ground_truth(name: str, kind: TruthKind, seed: int) -> GroundTruth:
    """Return the ground truth for the engine of a built-in time model. Raises UnknownTimeModel."""
    if kind is TruthKind.EXACT:
        return ExactTruth(time_model(name))
    return MeasuredTruth(noiseless(name), TimingNoise(seed))
