"""How long the next batch may be, and which decodes must be in it.

Within its bounds a batch is as long as it may be, because longer ones waste less on their fixed cost
[dynamic batch size, SLOs-Serve, §3.2.2]:

- to the earliest token due. Decodes that ran ahead of their pace lend that slack;
- but no longer than `Pacing` says, since an arrival waits for the end of the batch under way;
- longer than that, as far as slack goes, where only one long batch brings a prefill out in time.

Looser decodes may be left out of a batch while prefill needs the room: at a pace of two periods, every
other time. Each class is served in equal shares, whose token is due first going first, and only while all
peaks fit into the KV cache together: a decode that waits holds its blocks longer than `kv_peak` counts.
The tightest pace is that of decodes and of prefills about to decode, so shares are those that admission
counted on.

Where a decode is late already (the model or a predicted length was wrong), prefill gets half of what the
period leaves until the decode has caught up.
"""

from collections.abc import Sequence
from math import ceil, inf
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from penstock_core.decode_load import Load, Pacing, Rate, rates, short_chunk_s, work_s
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job
from penstock_core.time_model import BatchWork, chunk_work

TIME_ERROR_S = 1e-9
"""Due times are sums of floats; two that are meant to be equal may differ by this."""


class Bounds(NamedTuple):
    """What the next batch is held to: its longest, decodes that must be in it, decodes that may."""

    limit_s: float
    must: Sequence[Job]
    may: Sequence[Job]


def bounds(view: ReplicaView, decodes: Sequence[Job], prefills: Sequence[Job], pacing: Pacing) -> Bounds:
    """Bounds of the next batch, for accepted decodes and for accepted prefills as they are served."""
    load = decode_work(decodes)
    decodes_s = view.model.seconds(load)
    longest_s = pacing.longest_s(
        max(decodes_s, view.model.seconds(BatchWork(1))) + _short_chunk_s(view, prefills)
    )
    slack_s = min([job.due_s for job in decodes], default=inf) - view.now_s
    limit_s = min(slack_s, longest_s)
    if slack_s < decodes_s:
        period_s = min(_tightest_s(decodes), longest_s)
        return Bounds(max(decodes_s, (decodes_s + period_s) / 2), decodes, ())
    if not prefills or view.model.seconds(with_prefills(load, prefills)) <= limit_s:
        return Bounds(limit_s, decodes, ())
    if slack_s > limit_s:
        long_s = _one_long_batch_s(
            view, load, prefills, _ordinary_rate(view, load, decodes, prefills, pacing)
        )
        limit_s = max(limit_s, long_s) if long_s <= slack_s else limit_s
    every = Bounds(limit_s, decodes, ())
    if limit_s > longest_s:
        return every
    shared = _shares(view, decodes, prefills, pacing, limit_s)
    return shared if shared is not None and _free(view, shared) > _free(view, every) else every


def decode_work(decodes: Sequence[Job]) -> BatchWork:
    """A batch of these decodes alone."""
    return BatchWork(len(decodes), sum([job.computed_tokens for job in decodes]) + len(decodes))


def _all_peaks_fit(view: ReplicaView, jobs: Sequence[Job]) -> bool:
    """Whether every job could hold its last token at the same time."""
    size = view.kv.block_tokens
    peaks = [job.request.prompt_tokens + max(job.output_tokens, job.generated_tokens + 1) - 1 for job in jobs]
    return sum([-(-peak // size) for peak in peaks]) <= view.kv.total_blocks


def _free(view: ReplicaView, plan: Bounds) -> float:
    """Share of the batch's time that its decodes leave to prefill."""
    return 1.0 - view.model.seconds(decode_work(plan.must)) / plan.limit_s


def _short_chunk_s(view: ReplicaView, prefills: Sequence[Job]) -> float:
    if not prefills:
        return 0.0
    longest = max(job.pending_tokens + job.computed_tokens for job in prefills)
    return view.model.scale * short_chunk_s(view.model, longest)


def _tightest_s(jobs: Sequence[Job]) -> float:
    return min([job.pace_s for job in jobs if job.pace_s is not None], default=inf)


def with_prefills(batch: BatchWork, prefills: Sequence[Job]) -> BatchWork:
    """The batch with all that is left of these prompts in it too."""
    tokens, attention = batch.tokens, batch.prefill_work
    for job in prefills:
        pending = job.pending_tokens
        tokens += pending
        attention += chunk_work(pending, job.computed_tokens)
    return BatchWork(tokens, batch.context_tokens, attention)


def _shares(
    view: ReplicaView, decodes: Sequence[Job], prefills: Sequence[Job], pacing: Pacing, most_s: float
) -> Bounds | None:
    """Bounds of at most `most_s` with looser decodes left out as far as their pace allows."""
    by_pace: dict[float, list[Job]] = {}
    for job in decodes:
        by_pace.setdefault(job.pace_s or inf, []).append(job)
    tightest_s = min([*by_pace, _tightest_s(prefills)])
    loose = any(2 * tightest_s - TIME_ERROR_S <= pace_s < inf for pace_s in by_pace)
    if not loose or not _all_peaks_fit(view, [*decodes, *prefills]):
        return None
    must: list[Job] = []
    may: list[Job] = []
    for pace_s, jobs in sorted(by_pace.items()):
        share = _share(jobs, pace_s, tightest_s, view.now_s)
        by_urgency = jobs if share == len(jobs) else sorted(jobs, key=attrgetter("due_s"))
        must += by_urgency[:share]
        may += by_urgency[share:]
    longest_s = pacing.longest_s(view.model.seconds(decode_work(must)) + _short_chunk_s(view, prefills))
    return Bounds(min(tightest_s, longest_s, most_s), must, may)


def _share(jobs: Sequence[Job], pace_s: float, tightest_s: float, now_s: float) -> int:
    """How many decodes of one pace must be in a batch: equal shares, and whose token is due first."""
    every = 1 if pace_s == inf else int((pace_s + TIME_ERROR_S) // tightest_s)
    if every == 1:
        return len(jobs)
    soon_s = now_s + 2 * tightest_s - TIME_ERROR_S
    return max(ceil(len(jobs) / every), len([job for job in jobs if job.due_s < soon_s]))


def _one_long_batch_s(
    view: ReplicaView, decodes: BatchWork, prefills: Sequence[Job], ordinary: Rate
) -> float:
    """A batch that finishes a prefill which batches of ordinary length would finish too late, or 0.

    It holds all prefills up to the last such one and ends before any of their deadlines.
    """
    behind = _last_too_late(view, prefills, ordinary)
    if behind is None:
        return 0.0
    first = prefills[: behind + 1]
    whole = with_prefills(decodes, first)
    whole_s = view.model.seconds(whole)
    due_s = min([job.due_s for job in first]) - view.now_s
    return whole_s if whole_s <= due_s and whole.tokens <= view.limits.batch_tokens else 0.0


def _ordinary_rate(
    view: ReplicaView, work: BatchWork, decodes: Sequence[Job], prefills: Sequence[Job], pacing: Pacing
) -> Rate:
    """Of prefill beside `work`, the work of the decodes, and all prefills decoding too."""
    longest = max([job.pending_tokens + job.computed_tokens for job in prefills])
    load = Load(work.context_tokens, longest, view.limits.batch_tokens)
    tokens = np.array([float(len(decodes) + len(prefills))])
    tightest_s = np.array([_tightest_s([*decodes, *prefills])])
    return rates(view.model, pacing, load, tokens, tightest_s).beside(0)


def _last_too_late(view: ReplicaView, prefills: Sequence[Job], rate: Rate) -> int | None:
    """The last prefill that is out too late if all are done at this rate."""
    done_s, behind = view.now_s + rate.period_s, None
    for i, job in enumerate(prefills):
        pending = job.pending_tokens
        lines_s = work_s(view.model, pending, chunk_work(pending, job.computed_tokens))
        done_s += rate.prefill_s(lines_s, pending)
        if done_s > job.due_s:
            behind = i
    return behind
