"""How long an iteration really takes on the simulated engine, which no planner sees.

A planner believes in two straight lines and two slopes (`penstock_core.timing.time_model`). The truth is
richer, so that what holds here can hold on a GPU: kernel times from tables of measurements, which step and
bend (`kernel_times`), times what a machine adds to them (`disturbance`). Of the SLOs-Serve paper's engines
no tables are public: they take the paper's constants, which are the planner's own, and step by tiles of ±8 %
around them. There a planner is nearly right, so a result needs a second reading on an engine with tables.

`ExactTruth` is the planner's model itself, for runs that ask whether promises hold when the model is right.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.time_model import TimeModel

from penstock_simulator.batch_shape import BatchShape
from penstock_simulator.disturbance import Disturbance
from penstock_simulator.kernel_times import kernel_times, measured

TILE_TOKENS = 128
TILE_STEP = 0.08
"""Share by which a model without tables is slow at a tile's first token, and fast at its last."""


class Truth(Protocol):
    """An engine's timing."""

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Duration of the iteration that starts at `at_s` on the engine's clock; 0 for an empty one."""


class TruthKind(StrEnum):
    """Which truth an engine runs on."""

    MEASURED = "measured"
    EXACT = "exact"


@dataclass(frozen=True, slots=True)
class ExactTruth:
    """The planner's model, to the last digit."""

    model: TimeModel

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """As the model says, whenever."""
        return self.model.seconds(shape.work())


@dataclass(frozen=True, slots=True)
class MeasuredTruth:
    """Kernel times, disturbed. Stateful: every call is the next iteration."""

    undisturbed_s: Callable[[BatchShape], float]
    disturbance: Disturbance

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        """Kernel times under this iteration's noise and this moment's drift."""
        return self.undisturbed_s(shape) * self.disturbance.factor(at_s)


def undisturbed(name: str) -> Callable[[BatchShape], float]:
    """Seconds of an iteration on the engine of this built-in, before noise. Raises UnknownTimeModel."""
    model = time_model(name)
    if measured(name):
        return kernel_times(name).seconds
    return lambda shape: tiled_seconds(model, shape)


def tiled_seconds(model: TimeModel, shape: BatchShape) -> float:
    """A model's time, its tokens weighed by how much of their last tile is empty."""
    work = shape.work()
    empty = -work.tokens % TILE_TOKENS / TILE_TOKENS
    return model.seconds(work._replace(tokens=round(work.tokens * (1 + TILE_STEP * (2 * empty - 1)))))


def build_truth(name: str, kind: TruthKind, seed: int) -> Truth:
    """The truth of an engine that is named after a built-in time model. Raises UnknownTimeModel."""
    if kind is TruthKind.EXACT:
        return ExactTruth(time_model(name))
    return MeasuredTruth(undisturbed(name), Disturbance(seed))
