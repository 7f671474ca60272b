"""A plan that can be repeated: while all running requests decode, most steps equal the previous one.

If a policy's step says so (`Step.repeatable_blocks`), the policy is not called while the condition holds:
vLLM then makes the same step, since it gives every running request its pending tokens. Arrivals, ends and
preemptions change the ledger's count, as does a step with any other result, so only a few numbers are
compared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_vllm.engine import EngineRequest, StepOutput
from penstock_vllm.step_in_progress import StepInProgress
from penstock_vllm.view import KvMemory

NO_CHUNKS: Mapping[str, int] = {}


@dataclass(slots=True)
class RepeatedPlan:
    """A plan that computes one token of every running request and starts none.

    membership: the ledger's count when it was made. least_blocks: blocks that must be free.
    steps_left: steps until the first request reaches its planned end.
    running: number of requests. work: work of the last step. seconds: its predicted duration.
    increase_s: increase of the duration per step, since all contexts grow.
    """

    membership: int
    least_blocks: int
    steps_left: int
    running: int
    work: BatchWork
    seconds: float
    increase_s: float

    def holds(self, membership: int, memory: KvMemory) -> bool:
        """Return whether it applies to the next step. memory: after the last step, or a lower bound of it."""
        free_blocks = memory.free_blocks // memory.groups
        return self.membership == membership and free_blocks >= self.least_blocks and self.steps_left > 0

    def advance(self) -> None:
        """Advance by one step."""
        self.steps_left -= 1
        self.work = next_work(self.work, self.running)
        self.seconds += self.increase_s

    def last_step(self, output: StepOutput, requested_s: float) -> StepInProgress:
        """Return the last step, which vLLM made by this plan."""
        return StepInProgress(output, requested_s, self.work, self.seconds, NO_CHUNKS, self.membership)


def repeated_from(
    step: StepInProgress, membership: int, least_blocks: int, steps_left: int, model: TimeModel
) -> RepeatedPlan:
    """Return the plan that repeats this step, which computes one token of every running request."""
    running = len(step.output.num_scheduled_tokens)
    increase_s = model.seconds(next_work(step.work, running)) - step.predicted_s
    return RepeatedPlan(
        membership, least_blocks, steps_left, running, step.work, step.predicted_s, increase_s
    )


def next_work(work: BatchWork, running: int) -> BatchWork:
    """Return the work of the next step after a step of one token of every running request."""
    tokens, context_tokens, *_ = work
    return BatchWork(tokens, context_tokens + running)


def steps_to_first_end(running: Sequence[EngineRequest], longest_tokens: int) -> int:
    """Return the steps of one token each until the first request has the most tokens that it may have."""
    return min(
        [
            min(request.num_prompt_tokens + request.max_tokens - 1, longest_tokens)
            - request.num_computed_tokens
            for request in running
        ]
    )
