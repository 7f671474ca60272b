"""Steps in progress: their predicted ends, and the durations of ended steps.

An engine computes one step at a time, so a step begins when the previous one ends. Its duration counts from
the end of the previous one if the engine did not pause, otherwise from when it was requested.
"""

from collections import Counter, deque
from typing import NamedTuple

from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_vllm.engine import StepOutput
from penstock_vllm.step_in_progress import StepInProgress
from penstock_vllm.view import StepsInProgress


class MeasuredStep(NamedTuple):
    """A step that has ended: its work and its measured duration."""

    work: BatchWork
    duration_s: float


class Pipeline:
    """Steps in progress, oldest first."""

    def __init__(self) -> None:
        self.steps: deque[StepInProgress] = deque()
        self._began_s, self._ended_s, self._busy = 0.0, 0.0, False

    def free_s(self, now_s: float, model: TimeModel) -> float:
        """Return the predicted time at which the next step can begin."""
        return max(self._began_s + sum([model.seconds(step.work) for step in self.steps]), now_s)

    def left_s(self, now_s: float) -> float:
        """Return the seconds until all steps have ended, as predicted when they were planned."""
        return max(self._began_s + sum([step.predicted_s for step in self.steps]) - now_s, 0.0)

    def begin(self, step: StepInProgress) -> None:
        """Record a planned step."""
        if not self.steps:
            self._began_s = step.requested_s
        self.steps.append(step)

    def in_progress(self, membership: int) -> StepsInProgress:
        """Return the kind of work in progress. membership: the ledger's present count."""
        if not self.steps:
            return StepsInProgress.NONE
        one_each = len(self.steps) == 1 and self.steps[0].membership == membership
        return StepsInProgress.ONE_TOKEN_EACH if one_each else StepsInProgress.OTHER

    def drafts(self) -> Counter[str]:
        """Return the draft tokens that are being verified, by vLLM's ids."""
        drafts: Counter[str] = Counter()
        for step in self.steps:
            verified = step.output.scheduled_spec_decode_tokens
            drafts.update({engine_id: len(ids) for engine_id, ids in verified.items()})
        return drafts

    def pause(self) -> None:
        """Record that the engine was idle."""
        self._busy = False

    def take(self, output: StepOutput) -> StepInProgress | None:
        """Remove and return the step of this output; None if it computed nothing."""
        while self.steps and output.num_scheduled_tokens:
            step = self.steps.popleft()
            if step.output is output:
                return step
        return None

    def end(self, step: StepInProgress, now_s: float, *, more_work: bool) -> MeasuredStep | None:
        """Record the end of a step. Returns its measurement, if it took time.

        more_work: whether requests are left, so that the engine is not idle until the next step.
        """
        duration_s = now_s - (self._ended_s if self._busy else step.requested_s)
        self._began_s = self._ended_s = now_s
        self._busy = more_work
        return MeasuredStep(step.work, duration_s) if duration_s > 0 else None
