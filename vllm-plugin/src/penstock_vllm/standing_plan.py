"""A plan that is right again: while everybody decodes, most steps are the one before.

Where a policy says of its step that it stands (`Step.stands_blocks`), it is not asked again as long as that
holds: vLLM makes the step by itself, since it gives everybody who runs what is pending. Whoever comes, ends
or is preempted changes the ledger, and a step that came out as anything else does too, so all that has to be
looked at is a few numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from penstock_core.timing.time_model import BatchWork

from penstock_vllm.engine import EngineRequest
from penstock_vllm.view import Memory


@dataclass(slots=True)
class StandingPlan:
    """One token of everybody who runs, while nobody waits.

    roster: the ledger's count, when it was made. least_blocks: that have to be free.
    steps_left: until the first request is planned to its end, which ends only once that step has.
    running: how many. work: of the last step. seconds: that it was foreseen to take.
    further_s: by which each one takes longer than the one before, since everybody's context grows.
    """

    roster: int
    least_blocks: int
    steps_left: int
    running: int
    work: BatchWork
    seconds: float
    further_s: float

    def holds(self, roster: int, memory: Memory) -> bool:
        """Whether it is right for the next step too. memory: as the last step left it, at the least."""
        free_blocks = memory.free_blocks // memory.groups
        return self.roster == roster and free_blocks >= self.least_blocks and self.steps_left > 0

    def go_on(self) -> None:
        """One more step."""
        self.steps_left -= 1
        self.work = further(self.work, self.running)
        self.seconds += self.further_s


def further(work: BatchWork, running: int) -> BatchWork:
    """The step after one of a token of everybody who runs, when it is the same again."""
    tokens, context_tokens, *_ = work
    return BatchWork(tokens, context_tokens + running)


def steps_to_first_end(running: Sequence[EngineRequest], longest_tokens: int) -> int:
    """Steps of one token each that all of these can go through before the first has all it may ever have."""
    return min(
        [
            min(request.num_prompt_tokens + request.max_tokens - 1, longest_tokens)
            - request.num_computed_tokens
            for request in running
        ]
    )
