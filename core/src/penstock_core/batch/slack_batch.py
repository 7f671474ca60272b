"""A batch as long as the smallest slack of its decodes [Niyama, dynamic chunking].

A decode that is ahead of its deadlines tolerates a long batch. So the number of prompt tokens beside decodes
is not fixed: the batch takes as many as fit until the first of the decodes' next tokens is due. Only decodes
whose SLO can still be met count.

Jobs without an SLO that can be met come last: their decodes and then their prompts, within the same duration,
their prompts only if no other prompt waits. They are preempted if others need blocks or slots.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import NamedTuple

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import add_chunk, add_running, run_on
from penstock_core.batch.relegation import DecodeBatch, Work
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, holding_kv

MayStart = Callable[[Job], bool]
"""Returns whether a new request may start now, regardless of the next batch's blocks."""


class PromptBounds(NamedTuple):
    """Bounds on prompts: end of the batch, its tokens, and jobs that may be preempted.

    victims: jobs that running prompts may preempt. relegated_victims: jobs that new requests may preempt.
    """

    limit_s: float
    batch_tokens: int
    victims: Iterator[Job]
    relegated_victims: Iterator[Job]


def any_job(job: Job) -> bool:
    """Allow every new request to start."""
    return True


def slack_batch(
    view: ReplicaView,
    on_time: Work,
    relegated: Work,
    decodes: DecodeBatch,
    *,
    most_prompt_tokens: int,
    may_start: MayStart = any_job,
) -> OpenBatch:
    """Return a batch of decodes, then prompts in the given order within the duration, then relegated jobs."""
    batch = OpenBatch(view)
    served = [*on_time.decodes, *on_time.prefills, *relegated.decodes, *relegated.prefills]
    victims = reversed(holding_kv(served))
    run_on(batch, on_time.decodes, victims)
    limit_s = decodes.slack_s(on_time.decodes, view.now_s) if batch.tokens else inf
    relegated_victims = reversed(holding_kv([*relegated.decodes, *relegated.prefills]))
    bounds = PromptBounds(limit_s, batch.work.tokens + most_prompt_tokens, victims, relegated_victims)
    all_served = _add_prompts(batch, on_time.prefills, bounds, may_start)
    tokens = batch.work.tokens
    for job in relegated.decodes:
        in_time = not batch.tokens or batch.seconds(1, job.computed_tokens + 1) <= limit_s
        if in_time and batch.left_tokens and job.request.id not in batch.preempted:
            add_running(batch, job, victims)
    if all_served:
        most_tokens = bounds.batch_tokens + batch.work.tokens - tokens
        _add_prompts(
            batch, relegated.prefills, PromptBounds(limit_s, most_tokens, victims, iter(())), any_job
        )
    return batch


def _add_prompts(batch: OpenBatch, jobs: Sequence[Job], bounds: PromptBounds, may_start: MayStart) -> bool:
    """Add chunks of prompts in order. Returns whether no prompt is left waiting.

    A new request without blocks for its whole prompt ends the loop.
    """
    all_served = True
    for job in jobs:
        if job.request.id in batch.preempted:
            continue
        tokens = min(batch.largest_chunk(job, bounds.limit_s), bounds.batch_tokens - batch.work.tokens)
        if tokens <= 0:
            return False
        if job.holds_kv:
            add_chunk(batch, job, tokens, bounds.victims)
        elif not may_start(job):
            all_served = False
            continue
        elif batch.make_room(batch.blocks_wanted(job, job.pending_tokens), 1, bounds.relegated_victims):
            batch.add(job, tokens)
        else:
            return False
        all_served = all_served and tokens == job.pending_tokens
    return all_served
