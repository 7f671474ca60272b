"""A plan that is right again: while everybody decodes, most steps are the one before.

Where a policy says of its step that it stands (`Step.stands_blocks`), it is not asked again as long as that
holds: vLLM makes the step by itself, since it gives everybody who runs what is pending. Whoever comes, ends
or is preempted changes the ledger, and a step that came out as anything else does too, so all that has to be
looked at is a few numbers.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.time_model import BatchWork

from penstock_vllm.engine import EngineRequest


class StandingPlan(NamedTuple):
    """One token of everybody who runs, while nobody waits.

    roster: the ledger's count, when it was made. least_blocks: that have to be free.
    steps_left: until the first request is planned to its end, which ends only once that step has.
    running: how many. work: of the last step.
    """

    roster: int
    least_blocks: int
    steps_left: int
    running: int
    work: BatchWork

    def holds(self, roster: int, free_blocks: int) -> bool:
        """Whether it is right for the next step too."""
        return self.roster == roster and free_blocks >= self.least_blocks and self.steps_left > 0

    def next(self) -> "StandingPlan":
        """After one more step."""
        tokens, context_tokens, *_ = self.work
        work = BatchWork(tokens, context_tokens + self.running)
        return StandingPlan(self.roster, self.least_blocks, self.steps_left - 1, self.running, work)


def steps_to_first_end(running: Sequence[EngineRequest], longest_tokens: int) -> int:
    """Steps of one token each that all of these can go through before the first has all it may ever have."""
    return min(
        [
            min(request.num_prompt_tokens + request.max_tokens - 1, longest_tokens)
            - request.num_computed_tokens
            for request in running
        ]
    )
