"""A request as the planner knows it, and how far it has come.

`Request` is what was asked and never changes. `Job` is a request inside a replica at one moment. Counts
follow vLLM: of a job's `prompt + generated` tokens, `computed` have their keys and values in memory. A
plain decode has exactly one token pending, the last one generated. A preempted job keeps its generated
tokens and has nothing computed, so resuming it is one prefill over prompt and generated [SLOs-Serve, §4.1].
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from penstock_core.domain.slo import (
    Anchor,
    Judge,
    Targets,
    anchor_after,
    anchor_after_each,
    first_token_due_s,
    next_token_due_s,
    pace_s,
)

RequestId = str


@dataclass(frozen=True, slots=True)
class Request:
    """What one request asks for.

    arrival_s: on the owner's clock, when the router had read it.
    prompt_tokens: counted, or estimated until the engine has told.
    max_output_tokens: the client's own bound, or the model's.
    value: the planner maximises the sum over what it admits.
    """

    id: RequestId
    tier: str
    arrival_s: float
    prompt_tokens: int
    max_output_tokens: int
    targets: Targets = Targets()
    value: float = 1.0


class Job(NamedTuple):
    """A request in a replica at one moment. Immutable; a new one for every step it takes part in.

    computed_tokens: entries in the KV cache.
    generated_tokens: tokens that have come out.
    output_tokens: predicted length of the whole answer, a planning quantile, above `generated_tokens`.
    due_s: when its next token is due, on the owner's clock; infinite where nobody waits.
    pace_s: seconds per token it was promised, or None.
    anchor: where its pace is counted from; None before the first token.
    best_effort: takes surplus only, and may be preempted by anything that is not.
    sure_tokens: its answer, or its thinking where that has a pace of its own, is almost surely not shorter; 0
        where nobody can tell.
    came_s: when its last token came, where its thinking has a pace of its own and may have ended with it.
    """

    request: Request
    computed_tokens: int
    generated_tokens: int
    output_tokens: int
    due_s: float
    pace_s: float | None
    anchor: Anchor | None
    best_effort: bool
    sure_tokens: int = 0
    came_s: float = inf

    @property
    def pending_tokens(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return self.request.prompt_tokens + self.generated_tokens - self.computed_tokens

    @property
    def decoding(self) -> bool:
        """Whether one more token computed gives one more token out, as in every plain decode step."""
        generated = self.generated_tokens
        return generated > 0 and self.request.prompt_tokens + generated - self.computed_tokens == 1

    @property
    def output_tokens_left(self) -> int:
        """Predicted tokens still to come, at least one."""
        return max(self.output_tokens - self.generated_tokens, 1)


def new_job(request: Request, output_tokens: int, best_effort: bool, sure_tokens: int = 0) -> Job:
    """A request that has just arrived: nothing computed, its first token due by its targets."""
    return Job(
        request=request,
        computed_tokens=0,
        generated_tokens=0,
        output_tokens=output_tokens,
        due_s=first_token_due_s(request.arrival_s, request.targets),
        pace_s=pace_s(request.targets, output_tokens),
        anchor=None,
        best_effort=best_effort,
        sure_tokens=sure_tokens,
    )


def advance(job: Job, computed_tokens: int, new_tokens: int, now_s: float) -> Job:
    """The job after an iteration that ended at `now_s` and brought out `new_tokens` (0 within a prefill)."""
    if new_tokens == 0:
        return job._replace(computed_tokens=job.computed_tokens + computed_tokens)
    request, computed, generated, output, _, pace_s, anchor, best_effort, sure, _ = job
    generated += new_tokens
    if anchor is None or request.targets.judge is not Judge.MEAN:  # a mean's anchor is its first token
        anchor = anchor_after(request.targets.judge, anchor, generated, now_s)
    return Job(
        request,
        computed + computed_tokens,
        generated,
        output if output > generated else generated + 1,
        next_token_due_s(anchor, generated, pace_s),
        pace_s,
        anchor,
        best_effort,
        sure,
        inf if request.targets.answer_tpot_s is None else now_s,
    )


def after_each(jobs: Sequence[Job], ends_s: Sequence[float]) -> list[Job]:
    """The jobs after iterations that ended at these times and brought out one token of every one of them.

    What `advance` comes to, called for each job and each iteration, at the cost of one.
    """
    return [_after(job, ends_s) for job in jobs]


def _after(job: Job, ends_s: Sequence[float]) -> Job:
    request, computed, generated, output, _, pace_s, anchor, best_effort, sure, _ = job
    steps, judge = len(ends_s), request.targets.judge
    generated += steps
    if anchor is None or judge is not Judge.MEAN:
        anchor = anchor_after_each(judge, anchor, generated, ends_s)
    return Job(
        request,
        computed + steps,
        generated,
        output if output > generated else generated + 1,
        next_token_due_s(anchor, generated, pace_s),
        pace_s,
        anchor,
        best_effort,
        sure,
        inf if request.targets.answer_tpot_s is None else ends_s[-1],
    )


def thinking_ended(job: Job, now_s: float) -> Job:
    """The job after its last token of thinking came out at `now_s`: from then on its pace is the answer's.

    Until then it is planned by the tighter of the two [SLOs-Serve, App. C].
    """
    targets = job.request.targets
    if targets.answer_tpot_s is None:
        return job
    targets = replace(targets, tpot_s=targets.answer_tpot_s, answer_tpot_s=None)
    anchor, answer_pace_s = Anchor(now_s, job.generated_tokens), pace_s(targets, job.output_tokens)
    return job._replace(
        request=replace(job.request, targets=targets),
        pace_s=answer_pace_s,
        anchor=anchor,
        due_s=next_token_due_s(anchor, job.generated_tokens, answer_pace_s),
        came_s=inf,
    )


def promoted(job: Job) -> Job:
    """A best-effort job once its SLOs are promised after all."""
    return job._replace(best_effort=False)


def preempted(job: Job) -> Job:
    """The job once its KV has been freed. It keeps its tokens; its due time stands."""
    return job._replace(computed_tokens=0)


def deadline_order(job: Job) -> tuple[float, float, str]:
    """Prefills are done in this order, by the engine as by admission."""
    return job.due_s, job.request.arrival_s, job.request.id
