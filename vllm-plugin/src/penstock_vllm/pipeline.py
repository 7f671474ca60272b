"""The steps that have been planned and have not ended: when they will have, and how long they took.

An engine computes one step at a time, so the next one begins where those before it end. A step's duration is
from the end of the one before, where the engine worked on without a pause, else from when it was asked for.
"""

from collections import deque
from typing import NamedTuple

from penstock_core.time_model import BatchWork, TimeModel

from penstock_vllm.engine import StepOutput
from penstock_vllm.under_way import UnderWay


class Measured(NamedTuple):
    """A step that has ended: what it computed, and how long that took by the clock."""

    work: BatchWork
    duration_s: float


class Pipeline:
    """Steps under way, oldest first."""

    def __init__(self) -> None:
        self.steps: deque[UnderWay] = deque()
        self._ended_s, self._busy, self._busy_until_s = 0.0, False, 0.0

    def free_s(self, now_s: float) -> float:
        """When the next step can begin, as far as can be foreseen."""
        return max(self._busy_until_s, now_s) if self.steps else now_s

    def left_s(self, now_s: float) -> float:
        """Predicted time until all steps have ended."""
        return max(self._busy_until_s - now_s, 0.0) if self.steps else 0.0

    def begin(self, step: UnderWay, model: TimeModel) -> None:
        """A step has been planned."""
        self._busy_until_s = self.free_s(step.asked_s) + model.seconds(step.work)
        self.steps.append(step)

    def pause(self) -> None:
        """There was nothing to compute."""
        self._busy = False

    def take(self, output: StepOutput) -> UnderWay | None:
        """The step that this is the end of; None for one that computed nothing."""
        while self.steps and output.num_scheduled_tokens:
            step = self.steps.popleft()
            if step.output is output:
                return step
        return None

    def end(self, step: UnderWay, now_s: float, *, works_on: bool) -> Measured | None:
        """A step has ended; as measured, where it took time."""
        duration_s = now_s - (self._ended_s if self._busy else step.asked_s)
        self._ended_s, self._busy = now_s, works_on
        return Measured(step.work, duration_s) if duration_s > 0 else None

    def foresee(self, model: TimeModel, now_s: float) -> None:
        """When those still under way will have ended, as far as is known now."""
        self._busy_until_s = now_s + sum([model.seconds(step.work) for step in self.steps])
