"""The model's output: tokens, accepted draft tokens, the end of thinking and the end of an answer."""

from collections.abc import Callable

from penstock_core.domain.request import Job, RequestId, thinking_ended
from penstock_core.timing.acceptance_rate import Drafted

from penstock_simulator.engine.iteration import ActiveRequest, Grant


def no_drafts(drafts: int) -> int:
    """Accept no draft token."""
    return 0


class Generation:
    """The answers of one engine's requests.

    finished_thinking_tokens: thinking tokens of each request that has finished thinking.
    """

    def __init__(self, accept: Callable[[int], int], extend_prediction: Callable[[Job], int] | None) -> None:
        self.finished_thinking_tokens: dict[RequestId, int] = {}
        self._accept, self._extend_prediction = accept, extend_prediction

    def new_tokens(self, grant: Grant, drafted: list[Drafted]) -> int:
        """Return how many tokens a grant generates. Its draft tokens are added to `drafted`."""
        if not grant.emits:
            return 0
        if grant.drafts == 0:
            return 1
        job = grant.entry.job
        accepted = self._accept(grant.drafts)
        drafted.append(Drafted(job.request.tier, grant.drafts, accepted))
        return min(1 + accepted, grant.entry.answer_tokens - job.generated_tokens)

    def ends(self, entry: ActiveRequest, now_s: float) -> bool:
        """Handle a request's event (`next_event_tokens`). Returns whether its answer has ended."""
        if entry.job.generated_tokens == entry.answer_tokens:
            return True
        if entry.ends_thinking():
            entry.job = thinking_ended(entry.job, now_s)
            self.finished_thinking_tokens[entry.job.request.id] = entry.thinking_tokens
            entry.thinking_tokens = 0
        if self._extend_prediction is not None and entry.job.output_tokens_left == 1:
            entry.job = entry.job._replace(output_tokens=self._extend_prediction(entry.job))
        entry.update_next_event()
        return False

    def forget(self, job_id: RequestId) -> None:
        """Forget a request that has ended or is aborted."""
        self.finished_thinking_tokens.pop(job_id, None)
