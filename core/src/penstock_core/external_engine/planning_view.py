"""Predicted state of an external engine after it has computed the prompts that it was given.

A request inside such an engine cannot be taken back, paused or reordered. The engine computes prompts first
come first served, beside all its decodes, and reports progress only by generated tokens. So planning starts
from the moment when the prompts inside are computed: they decode by then, each other decode has generated one
more token per iteration, and no request inside is preempted, not even best effort.

The time model predicts that moment, from when the first of those prompts began. An engine that is later than
predicted is assumed to be done at the end of the iteration in progress.
"""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from penstock_core.domain.replica_view import KvCache, ReplicaView
from penstock_core.domain.request import Job, advance
from penstock_core.forecast.prefill_queue import full_batches


class EngineJobs(NamedTuple):
    """Requests that were sent to an engine and have not ended.

    decodes: jobs with output. prefills: those without, in the order they were sent.
    since_s: time at which the first of `prefills` began.
    """

    decodes: tuple[Job, ...] = ()
    prefills: tuple[Job, ...] = ()
    since_s: float = 0.0

    @property
    def jobs(self) -> tuple[Job, ...]:
        """Return all jobs inside."""
        return (*self.decodes, *self.prefills)

    def joined_by(self, job: Job, now_s: float) -> "EngineJobs":
        """Return these requests and one more."""
        since_s = self.since_s if self.prefills else now_s
        return EngineJobs(self.decodes, (*self.prefills, job), since_s)


class PrefillForecast(NamedTuple):
    """Prediction for the prompts inside: remaining iterations, duration of each, completion."""

    iterations: int
    iteration_s: float
    done_s: float


def prefill_forecast(view: ReplicaView, inside: EngineJobs) -> PrefillForecast:
    """Return the prediction from now on. Without prompts it is the iteration in progress."""
    count, context_tokens = len(inside.decodes), sum(job.computed_tokens + 1 for job in inside.decodes)
    batches = full_batches(view, inside.prefills, count, context_tokens)
    if not batches.iterations:
        return PrefillForecast(int(bool(count)), view.busy_until_s - view.now_s, view.busy_until_s)
    iteration_s = batches.seconds / batches.iterations
    done_s = max(inside.since_s + batches.seconds, view.busy_until_s, view.now_s)
    iterations = max(round((done_s - view.now_s) / iteration_s), 1)
    return PrefillForecast(min(iterations, batches.iterations), iteration_s, done_s)


def planning_view(view: ReplicaView, inside: EngineJobs) -> ReplicaView:
    """Return the view for planning. `view` has the held requests, and none that is inside."""
    prefills_done = prefill_forecast(view, inside)
    running = [_not_preemptible(job) for job in inside.decodes]
    if inside.prefills:
        steps, done_s = prefills_done.iterations, prefills_done.done_s
        running = [advance(job, steps, steps, done_s) for job in running]
        running += [advance(_not_preemptible(job), job.pending_tokens, 1, done_s) for job in inside.prefills]
    return replace(
        view, busy_until_s=prefills_done.done_s, running=tuple(running), kv=_with_blocks_of(running, view.kv)
    )


def _not_preemptible(job: Job) -> Job:
    """Return a job inside as planning sees it: best effort there has no deadline and cannot be preempted."""
    return job._replace(best_effort=False, due_s=inf, tpot_s=None) if job.best_effort else job


def _with_blocks_of(running: Sequence[Job], kv: KvCache) -> KvCache:
    used = sum(kv.blocks_for(job.computed_tokens) for job in running)
    return replace(kv, free_blocks=max(kv.total_blocks - used, 0))
