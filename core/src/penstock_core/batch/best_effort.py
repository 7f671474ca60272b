"""Best effort: requests without an SLO use the remaining capacity, and age into service [SLOs-Serve, §4.1].

Their decodes and prefills fill a batch after all admitted work, and only within the duration that it allows.
Their blocks and slots go to admitted jobs on demand, those of the job started last first. A preempted job
keeps its tokens and resumes later with one prefill.

Prefills with the fewest tokens to compute go first. Behind a long one, late turns of sessions, of whose
prompts most is cached, would wait until their prefixes are evicted, and be long themselves. A policy may also
give them more time than others.

To prevent starvation, the oldest best-effort job is protected once it has waited for `aging_s`. Planning then
treats it as an admitted one that is due after `STRETCH` times its own prefill; once that time has passed, as
due at its arrival, before all others. So a long prompt that is protected takes a share of the capacity,
instead of all until it is computed, and as soon as the admitted requests leave capacity, the engine serves it
like an admitted one until it ends. Only one job at a time is protected, so offline work cannot displace
requests with SLOs, and the oldest job always progresses.
"""

from collections.abc import Iterator, Sequence
from math import inf

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.time_model import chunk_work

STRETCH = 20.0
"""A protected prompt is due this many times the duration of its prefill alone after `aging_s`: until then it
claims a twentieth of the time."""


def oldest_waiting_too_long(view: ReplicaView, aging_s: float) -> Job | None:
    """Return the best-effort job to protect, as planning sees it: with a deadline and without a TPOT target.

    None if no job has waited for `aging_s`.
    """
    all_jobs, now_s = (*view.running, *view.waiting), view.now_s
    old = [job for job in all_jobs if job.best_effort and now_s - job.request.arrival_s >= aging_s]
    job = min([job for job in old if _can_ever_fit(view, job)], key=_age, default=None)
    return None if job is None else job._replace(due_s=_protected_due_s(view, job, aging_s), tpot_s=None)


def _protected_due_s(view: ReplicaView, job: Job, aging_s: float) -> float:
    if job.decoding:
        return inf
    alone_s = view.model.prefill_seconds(job.request.prompt_tokens)
    due_s = job.request.arrival_s + aging_s + STRETCH * alone_s
    left_s = view.model.prefill_seconds(job.pending_tokens, job.computed_tokens)
    return due_s if max(view.now_s, view.busy_until_s) + left_s <= due_s else job.request.arrival_s


def newest_first(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield running jobs in the order of preemption: started last goes first."""
    return (job for job in reversed(jobs) if job.holds_kv)


def fill_surplus(
    batch: OpenBatch, jobs: Sequence[Job], limit_s: float, uncached_limit_s: float = inf
) -> None:
    """Add best-effort work in the rest of the batch: decodes, then prefills, the shortest first.

    If there are no blocks for a job that waits, only those that hold some continue.
    limit_s: longest duration of the batch. uncached_limit_s: that for prefills that are not mostly cached, if
        it is less.
    """
    there = [job for job in jobs if job.request.id not in batch.preempted]
    _add_decodes(batch, [job for job in there if job.decoding], jobs, limit_s)
    limits_s = {True: limit_s, False: min(limit_s, uncached_limit_s)}  # by `_mostly_cached`
    prefills, may_start = [job for job in there if not job.decoding], True
    for job in sorted(prefills, key=lambda job: (job.pending_tokens, *_age(job))):
        cached = _mostly_cached(job)
        if cached not in limits_s or job.request.id in batch.preempted or not (job.holds_kv or may_start):
            continue
        chunk = batch.largest_chunk(job, _prefill_limit_s(batch, job, limits_s[cached]))
        if chunk == 0:
            del limits_s[cached]  # no other overtakes it
        elif job.holds_kv:
            _continue(batch, job, chunk, jobs)
        elif _has_room(batch, job):
            batch.add(job, chunk)
        else:
            may_start = not _can_ever_fit(batch.view, job)


def _mostly_cached(job: Job) -> bool:
    """Return whether at least half of a waiting job is in the engine's prefix cache, which may evict it."""
    return job.unheld_blocks is not None and job.computed_tokens >= job.pending_tokens


def _add_decodes(batch: OpenBatch, decodes: Sequence[Job], jobs: Sequence[Job], limit_s: float) -> None:
    """Add a token of each decode that time and memory allow, the oldest first; of all at once if all fit."""
    if batch.decode_all(decodes, limit_s):
        return
    for job in sorted(decodes, key=_age):
        if job.request.id not in batch.preempted:
            _add_decode(batch, job, jobs, limit_s)


def _add_decode(batch: OpenBatch, job: Job, jobs: Sequence[Job], limit_s: float) -> None:
    in_time = not batch.tokens or batch.seconds(1, job.computed_tokens + 1) <= limit_s
    if batch.left_tokens and in_time and _make_room(batch, job, 1, jobs):
        batch.add(job, 1)


def _prefill_limit_s(batch: OpenBatch, job: Job, limit_s: float) -> float:
    """Return the longest duration of the batch with a chunk; an empty one has at least one token."""
    if batch.tokens:
        return limit_s
    return max(limit_s, 2 * batch.seconds(1, 0, chunk_work(1, job.computed_tokens)))


def _continue(batch: OpenBatch, job: Job, chunk: int, jobs: Sequence[Job]) -> None:
    if not _make_room(batch, job, chunk, jobs):
        chunk = min(chunk, batch.room_tokens(job))
    if chunk:
        batch.add(job, chunk)


def _has_room(batch: OpenBatch, job: Job) -> bool:
    """Return whether there are a slot, and blocks for all of a job and for the growth of the others."""
    growth = len(batch.tokens)
    wanted = batch.blocks_wanted(job, job.pending_tokens) + growth
    return batch.free_slots >= 1 and wanted <= batch.free_blocks


def _make_room(batch: OpenBatch, job: Job, tokens: int, jobs: Sequence[Job]) -> bool:
    """Free blocks for this many more tokens by preempting younger best-effort jobs.

    Returns whether that succeeds.
    """
    younger = (other for other in newest_first(jobs) if _age(other) > _age(job))
    return batch.make_room(batch.blocks_wanted(job, tokens), 0, younger)


def _can_ever_fit(view: ReplicaView, job: Job) -> bool:
    return view.kv.blocks_for(job.request.prompt_tokens + job.generated_tokens) <= view.kv.total_blocks


def _age(job: Job) -> tuple[float, str]:
    return job.request.arrival_s, job.request.id
