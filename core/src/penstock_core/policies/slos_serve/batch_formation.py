"""Batch formation [SLOs-Serve, Algorithm 2], as the first batch of a course (`batch_plan`).

A batch is one engine iteration. Decodes take their tokens first, with the drafts that pay; what is left of
the batch goes to prefills, by deadline; what is left then to decodes that could have waited, and to best
effort. How long it may be is the course's to say. A prefill that finishes in it and is due before its end
shortens it to that deadline.

Best effort may lengthen a batch only as far as memory is free: where it is scarce, decodes that take longer
keep their blocks longer, and that costs admission.

Where blocks or seats run out, others give way (`preemption`): best effort first. Of accepted jobs one is
preempted only for a job that runs already and is due earlier. That takes a wrong prediction, since
admission has counted everybody's blocks.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from penstock_core.batch.best_effort import fill_surplus
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.preemption import Victims
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.slo import NO_ANCHOR
from penstock_core.domain.token_window import closed_tokens
from penstock_core.policies.slos_serve.batching_rules import Way, engines_way
from penstock_core.policies.slos_serve.speculation_length import Drafting, fastest
from penstock_core.timing.time_model import chunk_work

SCARCE = 0.5
"""Share of the KV cache, held by accepted jobs, from which on best effort only runs where they do not."""


class Work(NamedTuple):
    """What there is to do: prefills as they are served, the others in the view's order."""

    decodes: list[Job]
    prefills: list[Job]
    surplus: list[Job]


def accepted(view: ReplicaView, protected: Job | None) -> list[Job]:
    """Jobs with a claim: those that were admitted, and the best-effort job that has waited too long."""
    admitted = [job for job in (*view.running, *view.waiting) if not job.best_effort]
    return admitted if protected is None else [*admitted, protected]


def form_batch(view: ReplicaView, protected: Job | None = None, way: Way | None = None) -> Step:
    """The largest batch that makes no token of an accepted job late. `protected` counts as accepted.

    way: on which all of these keep their promises, where one has been found.
    """
    work = _sorted(view, protected)
    if not work.prefills and not work.surplus:
        alone = _decodes_alone(view, work.decodes, all_promised=protected is None)
        if alone is not None:
            return alone
    batch = OpenBatch(view)
    mode, ahead, _ = way or engines_way(view, work.decodes, work.prefills)
    others = Victims(work.surplus, [*work.decodes, *work.prefills])
    must = [job for i, job in enumerate(work.decodes) if i not in ahead.skipped]
    _decode(batch, must, others)
    _draft(batch, must, mode.drafting, ahead.limit_s)
    limit_s = _prefill(batch, work.prefills, others, ahead.limit_s)
    _decode_in_time(batch, [work.decodes[i] for i in sorted(ahead.skipped)], others, limit_s)
    fill_surplus(batch, work.surplus, _surplus_limit_s(batch, limit_s))
    return batch.step()


def _decodes_alone(view: ReplicaView, decodes: Sequence[Job], *, all_promised: bool) -> Step | None:
    """The batch of nothing but decodes, where there is room for all of them and nobody is in a hurry.

    all_promised: nobody is best effort, whose turn comes and goes with time.
    """
    batch = OpenBatch(view)
    if not _all_fit(batch, decodes):
        return None
    batch.add_decodes(decodes)
    drafting = fastest(view.speculation, view.model, decodes)
    if drafting:
        _draft(batch, decodes, drafting, inf)
    step = batch.standing_step() if all_promised else batch.step()
    in_time = step.duration_s <= min([job.due_s for job in decodes], default=inf) - view.now_s
    return step if in_time or not drafting else None


def _surplus_limit_s(batch: OpenBatch, limit_s: float) -> float:
    """How long best effort may make the batch: the less, the more of the KV cache accepted jobs hold."""
    if not batch.tokens:
        return limit_s
    kv, taken_s = batch.view.kv, batch.seconds()
    held = sum([kv.blocks_for(job.computed_tokens) for job in batch.view.running if not job.best_effort])
    return taken_s + max(limit_s - taken_s, 0.0) * max(1.0 - held / (SCARCE * kv.total_blocks), 0.0)


def _draft(batch: OpenBatch, decodes: Sequence[Job], drafting: Drafting, limit_s: float) -> None:
    """Drafts for decodes in the batch, as far as tokens, blocks and its length allow."""
    if not drafting:
        return
    wanted = [
        (job, drafts)
        for job in decodes
        if (drafts := min(drafting.get(job.request.tier, 0), job.output_tokens - job.generated_tokens - 1))
        > 0
        and job.request.id in batch.tokens
    ]
    if batch.draft_all(wanted, limit_s):
        return
    for job, most in wanted:
        drafts = min(most, batch.left_tokens)
        if drafts == 0:
            return
        blocks = batch.blocks_wanted(job, 1 + drafts) - batch.blocks_wanted(job, 1)
        if blocks <= batch.free_blocks and batch.seconds_drafting(drafts) <= limit_s:
            batch.draft(job, drafts)


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


def _decode(batch: OpenBatch, decodes: Sequence[Job], others: Victims) -> None:
    """One token for each decode that has room, the most urgent first."""
    if _all_fit(batch, decodes):
        batch.add_decodes(decodes)
        return
    for job in sorted(decodes, key=deadline_order):
        if job.request.id in batch.preempted or not batch.left_tokens:
            continue
        if batch.make_room(batch.blocks_wanted(job, 1), 0, others.of(job)):
            batch.add(job, 1)


def _decode_in_time(batch: OpenBatch, decodes: Sequence[Job], others: Victims, limit_s: float) -> None:
    """One token for each decode with which the batch still ends in time, and that the token costs nothing."""
    decodes = [job for job in decodes if not _loses_lead(job)]
    shortest = min([job.computed_tokens for job in decodes], default=0) + 1
    if batch.seconds(1, shortest) > limit_s:
        return
    for job in decodes:
        if batch.seconds(1, job.computed_tokens + 1) <= limit_s:
            _decode(batch, [job], others)


def _loses_lead(job: Job) -> bool:
    """Whether its pace is judged anew from its next token on: what it is ahead by then is lost, so the course
    that left it out may count on that token coming later."""
    since = job.generated_tokens + 1 - (job.anchor or NO_ANCHOR).tokens
    return closed_tokens(job.request.targets.judge.window, since) > 0


def _prefill(batch: OpenBatch, prefills: Sequence[Job], others: Victims, limit_s: float) -> float:
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
        if batch.make_room(blocks, int(starts), others.of(job)):
            batch.add(job, chunk)
        elif not starts and batch.room_tokens(job) > 0:
            batch.add(job, min(chunk, batch.room_tokens(job)))
    return limit_s
