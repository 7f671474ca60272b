"""Batch formation without speculation [SLOs-Serve, Algorithm 2].

A batch is one engine iteration. Decodes take their tokens first, so that each keeps its pace; what is
left of the batch goes to prefills, by deadline; what is left then to decodes that could have waited, and
to best effort. `batch_time` says how long the batch may be. A prefill that finishes in it and is due
before its end shortens it to that deadline.

Where blocks or seats run out, others give way (`giving_way`): best effort first. Of accepted jobs one is
preempted only for a job that runs already and is due earlier. That takes a wrong prediction, since
admission has counted everybody's blocks.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.batch_time import bounds
from penstock_core.best_effort import fill_surplus
from penstock_core.decode_load import Pacing
from penstock_core.giving_way import GivingWay
from penstock_core.open_batch import OpenBatch
from penstock_core.policy import Step
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job, deadline_order
from penstock_core.time_model import chunk_work


class Work(NamedTuple):
    """What there is to do: prefills as they are served, the others in the view's order."""

    decodes: list[Job]
    prefills: list[Job]
    surplus: list[Job]


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
    others = GivingWay(work.surplus, [*work.decodes, *work.prefills])
    _decode(batch, plan.must, others)
    limit_s = _prefill(batch, work.prefills, others, plan.limit_s)
    _decode_in_time(batch, plan.may, others, limit_s)
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


def _decode(batch: OpenBatch, decodes: Sequence[Job], others: GivingWay) -> None:
    """One token for each decode that has room, the most urgent first."""
    if _all_fit(batch, decodes):
        batch.add_decodes(decodes)
        return
    for job in sorted(decodes, key=deadline_order):
        if job.request.id in batch.preempted or not batch.left_tokens:
            continue
        if others.make_room(batch, job, batch.blocks_wanted(job, 1), 0):
            batch.add(job, 1)


def _decode_in_time(batch: OpenBatch, decodes: Sequence[Job], others: GivingWay, limit_s: float) -> None:
    """One token for each decode with which the batch still ends in time."""
    shortest = min([job.computed_tokens for job in decodes], default=0) + 1
    if batch.seconds(1, shortest) > limit_s:
        return
    for job in decodes:
        if batch.seconds(1, job.computed_tokens + 1) <= limit_s:
            _decode(batch, [job], others)


def _prefill(batch: OpenBatch, prefills: Sequence[Job], others: GivingWay, limit_s: float) -> float:
    """Chunks of prefills by deadline, as the batch has room; and how long it may be after that."""
    for job in prefills:
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
        if others.make_room(batch, job, blocks, int(starts)):
            batch.add(job, chunk)
        elif not starts and batch.room_tokens(job) > 0:
            batch.add(job, min(chunk, batch.room_tokens(job)))
    return limit_s
