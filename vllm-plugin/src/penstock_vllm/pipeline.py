"""The steps that have been planned and have not ended: when they will have, and how long they took.

An engine computes one step at a time, so the next one begins where those before it end. A step's duration is
from the end of the one before, where the engine worked on without a pause, else from when it was asked for.
"""

from collections import deque
from typing import NamedTuple

from penstock_core.timing.time_model import BatchWork, TimeModel

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
        self._began_s, self._ended_s, self._busy = 0.0, 0.0, False

    def free_s(self, now_s: float, model: TimeModel) -> float:
        """When the next step can begin, as far as can be foreseen by what is known of the engine now."""
        return max(self._began_s + sum([model.seconds(step.work) for step in self.steps]), now_s)

    def left_s(self, now_s: float) -> float:
        """Time until all steps have ended, as was foreseen when they were planned."""
        return max(self._began_s + sum([step.foreseen_s for step in self.steps]) - now_s, 0.0)

    def begin(self, step: UnderWay) -> None:
        """A step has been planned."""
        if not self.steps:
            self._began_s = step.asked_s
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
        self._began_s = self._ended_s = now_s
        self._busy = works_on
        return Measured(step.work, duration_s) if duration_s > 0 else None
