"""Best effort: requests without an SLO use the remaining capacity, and age into service [SLOs-Serve, §4.1].

Their decodes and prefills fill a batch after all admitted work, and only within the duration that it allows.
Their blocks and slots go to admitted jobs on demand, those of the job started last first. A preempted job
keeps its tokens and resumes later with one prefill.

To prevent starvation, the oldest best-effort job is protected once it has waited for `aging_s`. Admission
then treats it as if it were due before all deadlines, and as soon as the admitted requests leave capacity,
the engine serves it like an admitted one until it ends. Only one job at a time is protected, so offline work
cannot displace requests with SLOs, and the oldest job always progresses.
"""

from collections.abc import Iterator, Sequence
from math import inf

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.time_model import chunk_work


def oldest_waiting_too_long(view: ReplicaView, aging_s: float) -> Job | None:
    """Return the best-effort job to protect, as planning sees it: due before all deadlines, then without a
    TPOT target; None if no job has waited for `aging_s`.
    """
    all_jobs, now_s = (*view.running, *view.waiting), view.now_s
    old = [job for job in all_jobs if job.best_effort and now_s - job.request.arrival_s >= aging_s]
    job = min([job for job in old if _can_ever_fit(view, job)], key=_age, default=None)
    return None if job is None else job._replace(due_s=inf if job.decoding else -inf, tpot_s=None)


def newest_first(jobs: Sequence[Job]) -> Iterator[Job]:
    """Yield running jobs in the order of preemption: started last goes first."""
    return (job for job in reversed(jobs) if job.holds_kv)


def fill_surplus(batch: OpenBatch, jobs: Sequence[Job], limit_s: float) -> None:
    """Add best-effort work in the rest of the batch: decodes, then prefills, the oldest first."""
    there = [job for job in jobs if job.request.id not in batch.preempted]
    _add_decodes(batch, [job for job in there if job.decoding], jobs, limit_s)
    prefills = [job for job in there if not job.decoding]
    for job in sorted(prefills, key=lambda job: (not job.holds_kv, *_age(job))):
        if job.request.id not in batch.preempted and not _add_chunk(batch, job, jobs, limit_s):
            return


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


def _add_chunk(batch: OpenBatch, job: Job, jobs: Sequence[Job], limit_s: float) -> bool:
    """Return whether later jobs may have a chunk too. A job starts only if there are blocks for all of it."""
    if not batch.tokens:
        limit_s = max(limit_s, 2 * batch.seconds(1, 0, chunk_work(1, job.computed_tokens)))
    chunk = batch.largest_chunk(job, limit_s)
    if chunk == 0:
        return False
    if not job.holds_kv:
        growth = len(batch.tokens)
        if batch.free_slots < 1 or batch.blocks_wanted(job, job.pending_tokens) + growth > batch.free_blocks:
            return not _can_ever_fit(batch.view, job)
    elif not _make_room(batch, job, chunk, jobs):
        chunk = min(chunk, batch.room_tokens(job))
    if chunk:
        batch.add(job, chunk)
    return True


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
