"""A replica's snapshot: its load, and its planner's forecast for one more request.

A router cannot ask every replica for a verdict, so each replica sends a few numbers with its frames. Counts
give its present load. The forecast gives the effect on a new request: how long its prefill would wait, how
fast it would be, how long an iteration takes, how much memory is free at the future peak. It does not commit
the replica; admission still decides.

The prefill queue is modelled as a fluid (`prefill_rate`): prefills one after the other by deadline, at the
rate that the decodes of that time allow. Best effort is counted but not forecast, since it is preempted.
Times are durations from the moment of the snapshot, so clocks need not agree.

Sidecars and simulated replicas use this code, in one pass over columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.forecast.job_columns import JobColumns, columns
from penstock_core.forecast.kv_forecast import UNKNOWN_DELAY_STEPS, forecast
from penstock_core.forecast.prefill_rate import PrefillRate, prefill_rate
from penstock_core.timing.batch_length import ordinary_batch_s
from penstock_core.timing.time_model import ONE_DECODE, ONE_TOKEN, BatchWork, TimeModel, chunk_works


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Load and forecast of a replica. The defaults are those of a replica without a snapshot.

    running, waiting, best_effort: requests; the first two include best effort.
    prefill_tokens_left: prompt tokens of its requests that are not computed yet.
    work_s: time of an engine with full batches for all accepted work.
    prefill_wait_s: time until a prefill behind all others would begin; infinite if decodes leave no time.
    prefill_slack_s: how much longer all prefills may take without any of them being late.
    prefill_tokens_s: prompt tokens per second, beside the decodes that run then.
    step_s: duration of an iteration of its decodes alone.
    tightest_tpot_s: smallest TPOT target of its decodes; infinite for none.
    kv_tokens_headroom: free tokens at the future peak of all admitted requests.
    """

    running: int = 0
    waiting: int = 0
    best_effort: int = 0
    prefill_tokens_left: int = 0
    kv_tokens_free: int = 0
    kv_tokens_total: int = 0
    work_s: float = 0.0
    prefill_wait_s: float = 0.0
    prefill_slack_s: float = inf
    prefill_tokens_s: float = inf
    step_s: float = 0.0
    tightest_tpot_s: float = inf
    kv_tokens_headroom: int = 0


def is_valid(received: Snapshot) -> bool:
    """Return whether all durations and rates are valid: neither NaN nor negative.

    A peer of another version, or a faulty one, may send any value. Every comparison with NaN is false, so a
    NaN would decide the choice of every order.
    """
    return (
        received.work_s >= 0
        and received.prefill_wait_s >= 0
        and received.prefill_slack_s >= 0
        and received.prefill_tokens_s >= 0
        and received.step_s >= 0
        and received.tightest_tpot_s >= 0
    )


def snapshot(view: ReplicaView) -> Snapshot:
    """Return the snapshot of this view."""
    all_jobs = (*view.running, *view.waiting)
    jobs = columns(all_jobs)
    with_slo = np.fromiter([not job.best_effort for job in all_jobs], np.bool_, len(all_jobs))
    free_in_s = max(view.busy_until_s - view.now_s, 0.0)
    decoding = jobs.decoding
    queue = _queue(view, jobs, decoding, with_slo, free_in_s)
    headroom = _headroom_blocks(view, all_jobs, jobs, with_slo, queue)
    return Snapshot(
        running=len(view.running),
        waiting=len(view.waiting),
        best_effort=len(all_jobs) - int(with_slo.sum()),
        prefill_tokens_left=int(jobs.pending_tokens[~decoding].sum()),
        kv_tokens_free=view.kv.free_blocks * view.kv.block_tokens,
        kv_tokens_total=view.kv.total_blocks * view.kv.block_tokens,
        work_s=free_in_s + _work_s(view.model, jobs),
        prefill_wait_s=queue.wait_s,
        prefill_slack_s=queue.slack_s,
        prefill_tokens_s=queue.rate.tokens_s,
        step_s=view.model.seconds(_decodes(jobs, decoding & with_slo)),
        tightest_tpot_s=queue.tightest_tpot_s,
        kv_tokens_headroom=headroom * view.kv.block_tokens,
    )


class _Queue(NamedTuple):
    """The prefills with an SLO, one after the other by deadline."""

    rate: PrefillRate
    tightest_tpot_s: float
    wait_s: float
    slack_s: float


def _queue(view: ReplicaView, jobs: JobColumns, decoding: Bools, with_slo: Bools, free_in_s: float) -> _Queue:
    queued = np.flatnonzero(~decoding & with_slo)
    targets_s = jobs.tpot_s[with_slo]
    kept_s = targets_s[targets_s >= view.model.seconds(ONE_DECODE)]  # of tighter ones none can be met
    tightest_s = float(kept_s.min(initial=inf))
    decodes = _decodes(jobs, decoding & with_slo)
    ordinary_s = ordinary_batch_s(view.model.seconds(ONE_TOKEN))
    beside = decodes._replace(tokens=decodes.tokens + len(queued))
    rate = prefill_rate(view, beside, tightest_s, ordinary_s)
    if not len(queued):
        return _Queue(rate, tightest_s, free_in_s, inf)
    prefills = jobs.of(queued[np.argsort(jobs.due_s[queued], kind="stable")])
    pending = prefills.pending_tokens
    works = chunk_works(pending, prefills.computed_tokens)
    done_s = free_in_s + np.cumsum(rate.seconds(view.model, pending, works))
    slack_s = prefills.due_s - view.now_s - rate.period_s - done_s
    return _Queue(rate, tightest_s, float(done_s[-1]), max(float(slack_s.min()), 0.0))


def _decodes(jobs: JobColumns, decoding: Bools) -> BatchWork:
    count = int(decoding.sum())
    return BatchWork(count, int(jobs.computed_tokens[decoding].sum()) + count)


def _work_s(model: TimeModel, jobs: JobColumns) -> float:
    """Return the time of every token that is not computed yet, at its marginal cost in a large batch."""
    token_s = max(term.token_s for term in model.terms)
    tokens = jobs.pending_tokens.sum() + jobs.output_tokens_left.sum() - len(jobs.due_s)
    return model.scale * token_s * float(tokens)


def _headroom_blocks(
    view: ReplicaView, all_jobs: Sequence[Job], jobs: JobColumns, with_slo: Bools, queue: _Queue
) -> int:
    """Return the blocks that stay free without new requests.

    A prefill may start as late as the queue is long.
    """
    longest = queue.wait_s / queue.rate.period_s if queue.wait_s < inf else UNKNOWN_DELAY_STEPS
    delay = np.where(jobs.decoding[with_slo], 0, int(longest))
    left = jobs.output_tokens_left[with_slo]
    those = list(compress(all_jobs, with_slo.tolist()))
    future = forecast(those, view.kv, jobs.size_tokens[with_slo], left, delay)
    return max(view.kv.total_blocks - future.peak_blocks, 0)
