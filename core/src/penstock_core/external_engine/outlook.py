"""What an engine that is not ours will be like once it has computed what it was given.

Nothing that has gone into such an engine can be called back, paused or put behind others. It computes
prompts first come first served, beside all its decodes, and tells of it by the tokens that come out. So
whoever plans around it plans from the moment when the prompts inside are done: they decode by then, whoever
decodes already has come a token further with every iteration, and nobody there gives way, best effort
neither.

When that is, the time model says, from when the first of those prompts got its turn. An engine that is
later than foreseen is taken to be done at the end of the iteration under way.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache, ReplicaView
from penstock_core.domain.request import Job, advance
from penstock_core.forecast.prefill_queue import full_batches


class Inside(NamedTuple):
    """What an engine has been given, and has not ended.

    decodes: jobs with output. prefills: those without, in the order they went in.
    since_s: when the first of `prefills` got its turn.
    """

    decodes: tuple[Job, ...] = ()
    prefills: tuple[Job, ...] = ()
    since_s: float = 0.0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Everybody."""
        return (*self.decodes, *self.prefills)

    def joined_by(self, job: Job, now_s: float) -> "Inside":
        """The same with one more."""
        since_s = self.since_s if self.prefills else now_s
        return Inside(self.decodes, (*self.prefills, job), since_s)


class Course(NamedTuple):
    """Of the prompts inside: how many iterations are left to them, how long each is, when they are done."""

    iterations: int
    iteration_s: float
    done_s: float


def course_of(view: ReplicaView, inside: Inside) -> Course:
    """From now on. Without prompts it is the iteration under way."""
    count, context_tokens = len(inside.decodes), sum(job.computed_tokens + 1 for job in inside.decodes)
    batches = full_batches(view, inside.prefills, count, context_tokens)
    if not batches.iterations:
        return Course(int(bool(count)), view.busy_until_s - view.now_s, view.busy_until_s)
    iteration_s = batches.seconds / batches.iterations
    done_s = max(inside.since_s + batches.seconds, view.busy_until_s, view.now_s)
    iterations = max(round((done_s - view.now_s) / iteration_s), 1)
    return Course(min(iterations, batches.iterations), iteration_s, done_s)


def outlook(view: ReplicaView, inside: Inside) -> ReplicaView:
    """The view as planning needs it; in `view` stand those who wait outside, and nobody who is inside."""
    course = course_of(view, inside)
    running = [_rooted(job) for job in inside.decodes]
    if inside.prefills:
        steps, done_s = course.iterations, course.done_s
        running = [advance(job, steps, steps, done_s) for job in running]
        running += [advance(_rooted(job), job.pending_tokens, 1, done_s) for job in inside.prefills]
    return replace(
        view, busy_until_s=course.done_s, running=tuple(running), kv=_with_blocks_of(running, view.kv)
    )


def _rooted(job: Job) -> Job:
    """A job that is inside: best effort has no deadline there, and does not give way either."""
    return job._replace(best_effort=False, due_s=inf, pace_s=None) if job.best_effort else job


def _with_blocks_of(running: Sequence[Job], kv: KvCache) -> KvCache:
    used = sum(kv.blocks_for(job.computed_tokens) for job in running)
    return KvCache(kv.total_blocks, max(kv.total_blocks - used, 0), kv.block_tokens)
