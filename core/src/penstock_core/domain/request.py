"""A request, and its progress inside a replica.

`Request` is what the client asked for and never changes. `Job` is a request in a replica at one moment.
Counts follow vLLM: of a job's `prompt + generated` tokens, `computed` have their keys and values in memory. A
plain decode has exactly one pending token, the last one generated. A preempted job keeps its generated tokens
and has no computed ones, so it resumes with one prefill over prompt and generated tokens [SLOs-Serve, §4.1].
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, NamedTuple

from penstock_core.domain.slo import (
    Anchor,
    Judge,
    Targets,
    anchor_after,
    anchor_after_each,
    first_token_due_s,
    next_token_due_s,
    tpot_target_s,
)

RequestId = str


@dataclass(frozen=True, slots=True)
class Request:
    """What one request asks for.

    arrival_s: when the router had read it, on the owner's clock.
    prompt_tokens: counted, or estimated until the engine has reported them.
    max_output_tokens: the client's bound, or the model's.
    value: weight of the request; the planner maximises the sum over admitted requests.
    """

    id: RequestId
    tier: str
    arrival_s: float
    prompt_tokens: int
    max_output_tokens: int
    targets: Targets = Targets()
    value: float = 1.0


class Job(NamedTuple):
    """A request in a replica at one moment. Immutable; each step makes a new one.

    computed_tokens: entries in the KV cache.
    generated_tokens: tokens generated so far.
    output_tokens: predicted length of the whole answer, a planning quantile, above `generated_tokens`.
    due_s: deadline of its next token, on the owner's clock; infinite without an SLO.
    tpot_s: TPOT target in seconds per token, or None.
    anchor: token from which its TPOT is counted; None before the first token.
    best_effort: uses only remaining capacity, and may be preempted by any admitted job.
    sure_tokens: length that its answer, or its thinking if that has its own TPOT target, almost surely
        reaches; 0 if unknown.
    last_token_s: time of its last token, if its thinking has its own TPOT target and may have ended with that
        token; otherwise infinite.
    unheld_blocks: None, except for a job that holds no KV and whose prefix is in the engine's prefix cache.
        Then `computed_tokens` are those cached, and this is how many of their blocks no request holds:
        starting the job takes them from the free blocks. It computes at least one token.
    prefix_of: a request that holds the other cached blocks, if one is known.
    """

    request: Request
    computed_tokens: int
    generated_tokens: int
    output_tokens: int
    due_s: float
    tpot_s: float | None
    anchor: Anchor | None
    best_effort: bool
    sure_tokens: int = 0
    last_token_s: float = inf
    unheld_blocks: int | None = None
    prefix_of: RequestId | None = None

    @property
    def holds_kv(self) -> bool:
        """Return whether it holds KV blocks and a slot. In loops over many jobs, `holding_kv` is faster."""
        return self.computed_tokens > 0 and self.unheld_blocks is None

    @property
    def pending_tokens(self) -> int:
        """Return the tokens whose keys and values are not computed yet."""
        return self.request.prompt_tokens + self.generated_tokens - self.computed_tokens

    @property
    def decoding(self) -> bool:
        """Return whether computing one more token generates one, as in every plain decode step."""
        generated = self.generated_tokens
        return generated > 0 and self.request.prompt_tokens + generated - self.computed_tokens == 1

    @property
    def output_tokens_left(self) -> int:
        """Return the predicted number of tokens still to be generated, at least one."""
        return max(self.output_tokens - self.generated_tokens, 1)


def new_job(request: Request, output_tokens: int, best_effort: bool, sure_tokens: int = 0) -> Job:
    """Return the job of a request that has just arrived, its first token due by its targets."""
    return Job(
        request=request,
        computed_tokens=0,
        generated_tokens=0,
        output_tokens=output_tokens,
        due_s=first_token_due_s(request.arrival_s, request.targets),
        tpot_s=tpot_target_s(request.targets, output_tokens),
        anchor=None,
        best_effort=best_effort,
        sure_tokens=sure_tokens,
    )


def advance(job: Job, computed_tokens: int, new_tokens: int, now_s: float) -> Job:
    """Return the job after an iteration that ended at `now_s` with `new_tokens` (0 during a prefill)."""
    if new_tokens == 0:
        return job._replace(computed_tokens=job.computed_tokens + computed_tokens)
    anchor, judge = job.anchor, job.request.targets.judge
    if anchor is None or judge is not Judge.MEAN:  # a mean's anchor is its first token
        anchor = anchor_after(judge, anchor, job.generated_tokens + new_tokens, now_s)
    return _grown(job, computed_tokens, new_tokens, anchor, now_s)


def after_each(jobs: Sequence[Job], ends_s: Sequence[float]) -> list[Job]:
    """Return the jobs after iterations that ended at these times and generated one token of each job.

    Equals calling `advance` for each job and each iteration, at the cost of one call.
    """
    return [_after(job, ends_s) for job in jobs]


def _after(job: Job, ends_s: Sequence[float]) -> Job:
    steps, anchor, judge = len(ends_s), job.anchor, job.request.targets.judge
    if anchor is None or judge is not Judge.MEAN:
        anchor = anchor_after_each(judge, anchor, job.generated_tokens + steps, ends_s)
    return _grown(job, steps, steps, anchor, ends_s[-1])


def _grown(job: Job, computed_tokens: int, new_tokens: int, anchor: Anchor, now_s: float) -> Job:
    """Return the job with tokens of which the last was generated at `now_s`.

    Called for every token: all fields in their order, since `_replace` and keywords take twice as long.
    """
    request, tpot_s, output_tokens = job.request, job.tpot_s, job.output_tokens
    generated_tokens = job.generated_tokens + new_tokens
    return Job(
        request,
        job.computed_tokens + computed_tokens,
        generated_tokens,
        output_tokens if output_tokens > generated_tokens else generated_tokens + 1,
        next_token_due_s(anchor, generated_tokens, tpot_s),
        tpot_s,
        anchor,
        job.best_effort,
        job.sure_tokens,
        inf if request.targets.answer_tpot_s is None else now_s,
    )


def thinking_ended(job: Job, now_s: float) -> Job:
    """Return the job after its last token of thinking was generated at `now_s`; then the answer's TPOT target
    applies.

    Until then it is planned with the smaller of the two targets [SLOs-Serve, App. C].
    """
    targets = job.request.targets
    if targets.answer_tpot_s is None:
        return job
    targets = replace(targets, tpot_s=targets.answer_tpot_s, answer_tpot_s=None)
    anchor, answer_tpot_s = Anchor(now_s, job.generated_tokens), tpot_target_s(targets, job.output_tokens)
    return job._replace(
        request=replace(job.request, targets=targets),
        tpot_s=answer_tpot_s,
        anchor=anchor,
        due_s=next_token_due_s(anchor, job.generated_tokens, answer_tpot_s),
        last_token_s=inf,
    )


def promoted(job: Job) -> Job:
    """Return a best-effort job after its promotion."""
    return job._replace(best_effort=False)


def preempted(job: Job) -> Job:
    """Return the job after its KV has been freed. It keeps its tokens and its deadline."""
    return job._replace(computed_tokens=0)


def with_cached_prefix(job: Job, tokens: int, unheld_blocks: int, prefix_of: RequestId | None = None) -> Job:
    """Return a job that holds no KV and has `tokens` in the engine's prefix cache; see `Job.unheld_blocks`.

    A preempted job must have two tokens left to compute: with one it would look like a decode, which holds
    KV.
    """
    if not tokens:
        return job
    return job._replace(computed_tokens=tokens, unheld_blocks=unheld_blocks, prefix_of=prefix_of)


def holding_cached(job: Job) -> Job:
    """Return a job that holds the cached prefix of its prompt and computes the rest."""
    return job if job.unheld_blocks is None else job._replace(unheld_blocks=None, prefix_of=None)


def holding_kv(jobs: Iterable[Job]) -> list[Job]:
    """Return those of the jobs that hold KV blocks and a slot, in order."""
    return [job for job in jobs if job.computed_tokens and job.unheld_blocks is None]


def transposed(jobs: Sequence[Job]) -> Any:
    """Return a `Job` in which every field is a tuple of that field over all these jobs.

    Several times faster than reading each job's attributes.
    """
    return Job._make(zip(*jobs, strict=True) if jobs else len(Job._fields) * [()])


def deadline_order(job: Job) -> tuple[float, float, str]:
    """Return the sort key by which the engine and admission order prefills."""
    return job.due_s, job.request.arrival_s, job.request.id
