"""Relegation: who can't be in time any more waits behind those who can [Niyama, eager relegation].

A job whose promise is lost gains nothing by being early, and what it takes is taken from others who would
then be late too. Two ways a promise is lost, both seen before it is broken:

- the first token: even alone beside the running decodes, in one batch, its prompt would end too late;
- the pace: even in batches of decodes alone it would not be back on its pace when it is judged.

Lost is lost: whoever was relegated stays so, which is what a policy remembers. Best effort has no promise
and stands with the relegated.
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
"""Jobs that can't keep their promise any more, of those that are still here."""


class Work(NamedTuple):
    """Jobs by what they wait for, each in the view's order: those that run stand before those that wait."""

    decodes: list[Job]
    prefills: list[Job]


class Beat(NamedTuple):
    """A batch of all decodes and nothing else: what it computes and takes, and what each gets of it.

    tokens: that come out of a decode on average, more than one where it speculates.
    """

    work: BatchWork
    seconds: float
    tokens: float

    def slack_s(self, decodes: list[Job], now_s: float) -> float:
        """How long the next batch may be so that no decode falls behind; infinite where none waits."""
        return (
            min([job.due_s + (self.tokens - 1) * (job.pace_s or 0.0) for job in decodes], default=inf) - now_s
        )


def beat(view: ReplicaView) -> Beat:
    """Of everybody who decodes."""
    decodes = [job for job in view.running if job.decoding]
    tokens, context_tokens = len(decodes), sum([job.computed_tokens for job in decodes]) + len(decodes)
    told = view.speculation
    if told is None:
        work = BatchWork(tokens, context_tokens)
        return Beat(work, view.model.seconds(work), 1.0)
    work = BatchWork(tokens * (1 + told.max_tokens), context_tokens, 0.0, told.max_tokens)
    return Beat(work, view.model.seconds(work), tokens_expected(told.acceptance, told.max_tokens))


def divided(view: ReplicaView, lost: Lost, decodes: Beat) -> tuple[Work, Work]:
    """Jobs with a promise that can be kept, and those without, given who was lost before."""
    live, behind = Work([], []), Work([], [])
    for jobs in (view.running, view.waiting):
        for job in jobs:
            if job.best_effort or job.request.id in lost:
                side = behind
            elif job.decoding:
                side = live if _keeps_pace(job, view.now_s, decodes) else behind
            else:
                side = live if view.now_s + soonest_s(view, job, decodes) <= job.due_s else behind
            (side.decodes if job.decoding else side.prefills).append(job)
    return live, behind


def lost_of(behind: Work) -> Lost:
    """Whom to remember as lost."""
    return frozenset([job.request.id for jobs in behind for job in jobs])


def soonest_s(view: ReplicaView, job: Job, decodes: Beat) -> float:
    """From now to the first token of a prefill, if all of it was in the next batch, beside the decodes."""
    pending = job.pending_tokens
    tokens, context_tokens, _, spec_steps = decodes.work
    attention = chunk_work(pending, job.computed_tokens)
    return view.model.seconds(BatchWork(tokens + pending, context_tokens, attention, spec_steps))


def _keeps_pace(job: Job, now_s: float, decodes: Beat) -> bool:
    """Whether batches of decodes alone would bring it back on its pace before it is judged."""
    if job.pace_s is None or job.due_s >= now_s + decodes.seconds:
        return True
    since = job.generated_tokens - (job.anchor or NO_ANCHOR).tokens
    tokens = tokens_until_judged(job.request.targets.judge.window, since, job.output_tokens_left)
    return job.due_s + (tokens - 1) * job.pace_s >= now_s + decodes.seconds * max(
        tokens / decodes.tokens, 1.0
    )
