"""Relegation: jobs that can no longer meet their SLO wait behind those that can [Niyama, eager relegation].

A job whose SLO is lost has no benefit from early service, and would make others late. Two conditions detect a
lost SLO before its deadline:

- TTFT: even in one batch with only the running decodes, its prompt would end too late;
- TPOT: even in batches of decodes alone, it would not catch up before its TPOT is judged.

A relegated job stays relegated; policies remember the set. Best-effort jobs have no SLO and are treated like
relegated ones.
"""

from math import inf
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.slo import NO_ANCHOR
from penstock_core.domain.token_window import tokens_until_judged
from penstock_core.timing.speculation import tokens_expected
from penstock_core.timing.time_model import BatchWork, chunk_work

Lost = frozenset[RequestId]
"""Jobs that can no longer meet their SLO, among those still present."""


class Work(NamedTuple):
    """Jobs by phase, each in the view's order: running ones before waiting ones."""

    decodes: list[Job]
    prefills: list[Job]


class DecodeBatch(NamedTuple):
    """A batch of all decodes alone: its work, its duration, and the tokens of each decode.

    tokens: mean number generated per decode, more than one with speculation.
    """

    work: BatchWork
    seconds: float
    tokens: float

    def slack_s(self, decodes: list[Job], now_s: float) -> float:
        """Return the longest next batch with which no decode is late; infinite without deadlines."""
        return (
            min([job.due_s + (self.tokens - 1) * (job.tpot_s or 0.0) for job in decodes], default=inf) - now_s
        )


def decode_batch(view: ReplicaView) -> DecodeBatch:
    """Return the batch of all decodes of the view."""
    decodes = [job for job in view.running if job.decoding]
    tokens, context_tokens = len(decodes), sum([job.computed_tokens for job in decodes]) + len(decodes)
    speculation = view.speculation
    if speculation is None:
        work = BatchWork(tokens, context_tokens)
        return DecodeBatch(work, view.model.seconds(work), 1.0)
    work = BatchWork(tokens * (1 + speculation.max_tokens), context_tokens, 0.0, speculation.max_tokens)
    return DecodeBatch(
        work, view.model.seconds(work), tokens_expected(speculation.acceptance, speculation.max_tokens)
    )


def divide(view: ReplicaView, lost: Lost, decodes: DecodeBatch) -> tuple[Work, Work]:
    """Return the jobs whose SLO can be met and the others, given those lost before."""
    on_time, relegated = Work([], []), Work([], [])
    for jobs in (view.running, view.waiting):
        for job in jobs:
            if job.best_effort or job.request.id in lost:
                side = relegated
            elif job.decoding:
                side = on_time if _meets_tpot(job, view.now_s, decodes) else relegated
            else:
                side = on_time if view.now_s + soonest_s(view, job, decodes) <= job.due_s else relegated
            (side.decodes if job.decoding else side.prefills).append(job)
    return on_time, relegated


def lost_in(relegated: Work) -> Lost:
    """Return the jobs to remember as lost."""
    return frozenset([job.request.id for jobs in relegated for job in jobs])


def soonest_s(view: ReplicaView, job: Job, decodes: DecodeBatch) -> float:
    """Return the seconds until a prefill's first token if all of it is in the next batch."""
    pending = job.pending_tokens
    tokens, context_tokens, _, spec_steps = decodes.work
    attention = chunk_work(pending, job.computed_tokens)
    return view.model.seconds(BatchWork(tokens + pending, context_tokens, attention, spec_steps))


def _meets_tpot(job: Job, now_s: float, decodes: DecodeBatch) -> bool:
    """Return whether batches of decodes alone bring a job back to its TPOT target before it is judged."""
    if job.tpot_s is None or job.due_s >= now_s + decodes.seconds:
        return True
    since = job.generated_tokens - (job.anchor or NO_ANCHOR).tokens
    tokens = tokens_until_judged(job.request.targets.judge.window, since, job.output_tokens_left)
    return job.due_s + (tokens - 1) * job.tpot_s >= now_s + decodes.seconds * max(
        tokens / decodes.tokens, 1.0
    )
