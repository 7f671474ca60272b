"""The program of one admission, drawn from the view: what claims hold, and what newcomers ask for.

Everything that is summed or compared over all jobs is done on columns (`job_columns`), so that hundreds of
running requests cost little more than a few.
"""

from collections.abc import Sequence
from math import inf
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools, Floats, Ints
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.forecast.decode_load import Load, Pacing, rates, work_s
from penstock_core.forecast.job_columns import JobColumns, columns
from penstock_core.forecast.kv_forecast import UNKNOWN_DELAY_STEPS, forecast
from penstock_core.policies.slos_serve.dynamic_program import Item, Program
from penstock_core.policies.slos_serve.tpot_classes import class_of, kept_paces_s, states
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work


def program_of(view: ReplicaView, claims: Sequence[Job], new: Sequence[Job], pacing: Pacing) -> Program:
    """What decides these newcomers (by deadline, none best effort), beside these claims."""
    jobs, present = columns([*claims, *new]), len(claims)
    waiting = ~jobs.decoding
    waiting[present:] = True
    decoding = ~waiting
    prefills = sorted([claims[i] for i in np.flatnonzero(waiting[:present]).tolist()], key=deadline_order)
    paces_s = _promised_s(jobs, view.model)
    kept = kept_paces_s(paces_s.tolist()) or (inf,)
    demand = _demand(view, jobs, waiting, min(kept[0], pacing.floor_s))
    base, asked = demand.blocks[:present].sum(axis=0), demand.blocks[present:]
    load = Load(
        context_tokens=int((base + asked.sum(axis=0)).max()) * view.kv.block_tokens,
        longest_prompt_tokens=int(jobs.size_tokens[waiting].max(initial=0)),
        batch_tokens=view.limits.batch_tokens,
    )
    classes = class_of(paces_s, kept)
    running, added = (
        np.bincount(part, minlength=len(kept)) for part in (classes[:present], classes[present:])
    )
    space = states(kept, running.tolist(), added.tolist(), demand.all_peaks_fit)
    at = rates(view.model, pacing, load, space.decode_tokens, space.tightest_pace_s)
    start_s = max(view.now_s, view.busy_until_s)
    slack_s = _slack_s(view, jobs.due_s[decoding], float(space.tightest_pace_s[0]))
    if slack_s < at.period_s[0]:
        decodes = BatchWork(int(decoding.sum()), load.context_tokens)
        start_s += max(slack_s, view.model.seconds(decodes))
    return Program(
        start_s,
        _items(prefills, new, [space.strides[c] for c in classes[present:].tolist()], view.model),
        at,
        at.fits & (space.newcomers <= view.limits.running - present),
        [job.request.value for job in new],
        asked,
        np.maximum(view.kv.total_blocks - base, 0),
    )


class Demand(NamedTuple):
    """Blocks of every job in every bucket of steps, and whether all peaks fit at once."""

    blocks: Ints
    all_peaks_fit: bool


def _promised_s(jobs: JobColumns, model: TimeModel) -> Floats:
    """Paces; infinite where none was promised, or one that not even a batch of one token keeps."""
    return np.where(jobs.pace_s >= model.seconds(BatchWork(1)), jobs.pace_s, inf)


def _demand(view: ReplicaView, jobs: JobColumns, waiting: Bools, shortest_s: float) -> Demand:
    """What jobs demand of the KV cache. No batch beside which prefill waits is shorter than `shortest_s`,
    unless it is full of tokens."""
    decodes = len(waiting) - int(waiting.sum())
    full_of_tokens = jobs.pending_tokens[waiting].sum() / max(view.limits.batch_tokens - decodes, 1)
    batches = (jobs.due_s - max(view.now_s, view.busy_until_s)) / shortest_s + full_of_tokens + 2
    longest = UNKNOWN_DELAY_STEPS
    steps = np.where(np.isfinite(batches), np.clip(np.ceil(batches), 0, longest), longest)
    delay = np.where(waiting, steps, 0).astype(np.int64)
    left, size = jobs.output_tokens_left, view.kv.block_tokens
    peak_blocks = int((-(-(jobs.size_tokens + left - 1) // size)).sum())
    return Demand(forecast(jobs.size_tokens, left, size, delay).blocks, peak_blocks <= view.kv.total_blocks)


def _slack_s(view: ReplicaView, decodes_due_s: Floats, tightest_pace_s: float) -> float:
    """How long the next batch may be. After the one under way every decode has a whole period left."""
    if view.busy_until_s > view.now_s:
        return tightest_pace_s
    return float(decodes_due_s.min(initial=inf)) - view.now_s


def _items(
    prefills: Sequence[Job], new: Sequence[Job], strides: Sequence[int], model: TimeModel
) -> list[Item]:
    """Every prefill by deadline, forced and optional."""
    forced = [(deadline_order(job), _item(job, model)) for job in prefills]
    optional = [
        (deadline_order(job), _item(job, model, i, stride))
        for i, (job, stride) in enumerate(zip(new, strides, strict=True))
    ]
    return [item for _, item in sorted(forced + optional, key=itemgetter(0))]


def _item(job: Job, model: TimeModel, newcomer: int | None = None, stride: int = 0) -> Item:
    tokens = job.pending_tokens
    lines_s = work_s(model, tokens, chunk_work(tokens, job.computed_tokens))
    return Item(job.due_s, tokens, lines_s, newcomer, stride)
