"""Batch formation without speculation [SLOs-Serve, Algorithm 2].

A batch is one engine iteration. Decodes take their tokens first, so that each keeps its pace; what is
left of the batch goes to prefills, by deadline; what is left then to decodes that could have waited, and
to best effort. `batch_time` says how long the batch may be. A prefill that finishes in it and is due
before its end shortens it to that deadline.

Where blocks or seats run out, best effort is preempted first. Of accepted jobs one is preempted only for
a job that runs already and is due earlier: the one that can wait longest goes. That takes a wrong
prediction, since admission has counted everybody's blocks.
"""

from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import NamedTuple

from penstock_core.batch_time import bounds
from penstock_core.best_effort import fill_surplus, newest_first
from penstock_core.decode_load import Pacing
from penstock_core.open_batch import OpenBatch
from penstock_core.policy import Step
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.time_model import chunk_work


class Work(NamedTuple):
    """What there is to do: prefills as they are served, the others in the view's order."""

    decodes: list[Job]
    prefills: list[Job]
    surplus: list[Job]


def deadline_order(job: Job) -> tuple[float, float, str]:
    """Prefills are done in this order, by the engine as by admission."""
    return job.due_s, job.request.arrival_s, job.request.id


def accepted(view: ReplicaView, protected: Job | None) -> list[Job]:
    """Jobs with a claim: those that were admitted, and the best-effort job that has waited too long."""
    admitted = [job for job in (*view.running, *view.waiting) if not job.best_effort]
    return admitted if protected is None else [*admitted, protected]


def form_batch(view: ReplicaView, pacing: Pacing, protected: Job | None = None) -> Step:
    """The largest batch that makes no token of an accepted job late. `protected` counts as accepted."""
    work = _sorted(view, protected)
    batch = OpenBatch(view)
    if not work.prefills and not work.surplus and _all_fit(batch, work.decodes):
        batch.add_decodes(work.decodes)
        return batch.step()
    plan = bounds(view, work.decodes, work.prefills, pacing)
    _decode(batch, plan.must, work)
    limit_s = _prefill(batch, work, plan.limit_s)
    for job in plan.may:
        if batch.seconds(1, job.computed_tokens + 1) <= limit_s:
            _decode(batch, [job], work)
    fill_surplus(batch, work.surplus, limit_s)
    return batch.step()


def _sorted(view: ReplicaView, protected: Job | None) -> Work:
    decodes: list[Job] = []
    prefills: list[Job] = [job for job in view.waiting if not job.best_effort]
    surplus: list[Job] = []
    for job in view.running:
        if job.best_effort:
            surplus.append(job)
        elif job.decoding:
            decodes.append(job)
        else:
            prefills.append(job)
    surplus += [job for job in view.waiting if job.best_effort]
    if protected is not None:
        surplus = [job for job in surplus if job.request.id != protected.request.id]
        (decodes if protected.decoding else prefills).append(protected)
    prefills.sort(key=deadline_order)
    return Work(decodes, prefills, surplus)


def _all_fit(batch: OpenBatch, decodes: Sequence[Job]) -> bool:
    return len(decodes) <= min(batch.left_tokens, batch.free_blocks)


def _decode(batch: OpenBatch, decodes: Sequence[Job], work: Work) -> None:
    """One token for each decode that has room, the most urgent first."""
    if _all_fit(batch, decodes):
        batch.add_decodes(decodes)
        return
    for job in sorted(decodes, key=deadline_order):
        if job.request.id in batch.preempted or not batch.left_tokens:
            continue
        if batch.make_room(batch.blocks_wanted(job, 1), 0, _who_gives_way(work, job)):
            batch.add(job, 1)


def _prefill(batch: OpenBatch, work: Work, limit_s: float) -> float:
    """Chunks of prefills by deadline, as the batch has room; and how long it may be after that."""
    for job in work.prefills:
        if job.request.id in batch.preempted:
            continue
        due_in_s = job.due_s - batch.view.now_s
        whole_s = batch.seconds(job.pending_tokens, 0, chunk_work(job.pending_tokens, job.computed_tokens))
        if whole_s <= due_in_s:
            limit_s = min(limit_s, due_in_s) if whole_s <= limit_s else limit_s
        chunk = batch.largest_chunk(job, limit_s)
        if chunk == 0:
            break
        starts = job.computed_tokens == 0
        blocks = batch.blocks_wanted(job, job.pending_tokens if starts else chunk)
        if batch.make_room(blocks, int(starts), _who_gives_way(work, job)):
            batch.add(job, chunk)
        elif not starts and batch.room_tokens(job) > 0:
            batch.add(job, min(chunk, batch.room_tokens(job)))
    return limit_s


def _who_gives_way(work: Work, job: Job) -> Iterator[Job]:
    """Best effort; then, for a job that runs already, accepted ones that are due later, the last first."""
    yield from newest_first(work.surplus)
    if job.computed_tokens == 0:
        return
    running = [other for other in (*work.decodes, *work.prefills) if other.computed_tokens]
    last_first = sorted(running, key=deadline_order, reverse=True)
    yield from takewhile(lambda other: deadline_order(other) > deadline_order(job), last_first)
