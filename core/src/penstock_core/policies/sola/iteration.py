"""SOLA's two kinds of iteration [SOLA, §4.4.3, Fig. 6], and the jobs of each phase.

If TTFT is minimised, prompts come first, as many tiles as eq. 1 allows, and decodes fill the batch up to the
same bound. If not even one tile fits, or no prompt can progress, it is a batch of decodes. If TPOT is
minimised, all decodes come first, then the prompts that eq. 2 requires, whole within the engine's token
budget.

A prompt without a TTFT target has no urgency: it is served from what targets leave, like best effort, and is
ordered as if it were due `aging_s` after its arrival. So is the oldest best-effort prompt once it has waited
that long.
"""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from penstock_core.batch.best_effort import newest_first, oldest_waiting_too_long
from penstock_core.batch.open_batch import OpenBatch
from penstock_core.batch.ordered_batch import add_running, run_on
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, holding_kv
from penstock_core.policies.sola.cost import Costs
from penstock_core.policies.sola.decode_order import worst_first
from penstock_core.policies.sola.monitor import Pressure, latency_ratios, pressure
from penstock_core.policies.sola.workload import PromptQueue, fewest_prompts, most_tokens
from penstock_core.timing.time_model import BatchWork


class Phases(NamedTuple):
    """Jobs of a view by phase.

    decodes: with or without a target, excluding best effort. prompts: those with a deadline of the next
        token.
    without_target: prompts without a target, with the deadline that `aging_s` gives them.
    best_effort: may be preempted for all others.
    """

    decodes: list[Job]
    prompts: list[Job]
    without_target: list[Job]
    best_effort: list[Job]


def phases(view: ReplicaView, aging_s: float) -> Phases:
    """Return the jobs of the view by phase."""
    oldest = oldest_waiting_too_long(view, aging_s)
    protected = oldest.request.id if oldest else None
    found = Phases([], [], [], [])
    for job in (*view.running, *view.waiting):
        if job.best_effort and job.request.id != protected:
            found.best_effort.append(job)
        elif job.decoding:
            found.decodes.append(job)
        elif job.due_s < inf and not job.best_effort:
            found.prompts.append(job)
        else:
            found.without_target.append(job._replace(due_s=job.request.arrival_s + aging_s))
    return found


def pressure_of(jobs: Phases, now_s: float) -> Pressure:
    """Return how near each latency is to its target. A resumed prompt counts with its TPOT."""
    new = [job for job in jobs.prompts if job.anchor is None]
    resumed = [job for job in jobs.prompts if job.anchor is not None]
    return pressure(latency_ratios(new, now_s), latency_ratios([*resumed, *jobs.decodes], now_s))


def minimise_ttft(batch: OpenBatch, jobs: Phases, prompts: PromptQueue, costs: Costs, loosened: bool) -> None:
    """Add prompts by eq. 1, then decodes up to the same number of tokens."""
    limit_s = to_spare_s(jobs.decodes, batch.view.now_s, loosened)
    tokens = most_tokens(prompts, costs, limit_s, batch.left_tokens)
    growth = sum([batch.blocks_wanted(job, 1) for job in jobs.decodes])
    _add_prompts(batch, prompts.jobs, tokens, growth, jobs.best_effort)
    _add_decodes(batch, jobs, tokens if batch.tokens else batch.left_tokens, costs)


def minimise_tpot(batch: OpenBatch, jobs: Phases, prompts: PromptQueue, costs: Costs) -> None:
    """Add all decodes, then prompts by eq. 2."""
    _add_decodes(batch, jobs, batch.left_tokens, costs)
    first = fewest_prompts(prompts, costs, batch.work)
    _add_prompts(batch, prompts.jobs[:first], batch.work.tokens + batch.left_tokens, 0, jobs.best_effort)


def to_spare_s(decodes: Sequence[Job], now_s: float, loosened: bool) -> float:
    """Return how long these decodes can go without a token; if loosened, late ones do not count."""
    return min([job.due_s for job in decodes if job.due_s >= now_s or not loosened], default=inf) - now_s


def _add_prompts(
    batch: OpenBatch, prompts: Sequence[Job], most_tokens: int, growth_blocks: int, best_effort: Sequence[Job]
) -> None:
    """Add prompts in order up to `most_tokens` in the batch; `growth_blocks` stay free for decodes."""
    for job in prompts:
        if job.request.id in batch.preempted:  # it was preempted for a decode
            continue
        tokens = min(job.pending_tokens, most_tokens - batch.work.tokens)
        if tokens <= 0:
            return
        is_new = not job.holds_kv
        blocks = batch.blocks_wanted(job, tokens) + growth_blocks
        if batch.make_room(blocks, int(is_new), newest_first(best_effort)):
            batch.add(job, tokens)
        elif not is_new and (room_tokens := min(batch.room_tokens(job), tokens)) > 0:
            batch.add(job, room_tokens)


def _add_decodes(batch: OpenBatch, jobs: Phases, most_tokens: int, costs: Costs) -> None:
    """Add decodes with draft tokens while the batch is below `most_tokens`, worst first if not all fit."""
    view, decodes = batch.view, jobs.decodes
    drafts = view.speculation.max_tokens if view.speculation else 0
    waiting = (*jobs.prompts, *jobs.without_target, *jobs.best_effort)
    others = holding_kv(waiting)
    if batch.work.tokens + (1 + drafts) * len(decodes) <= most_tokens:
        run_on(batch, decodes, reversed([*decodes, *others]))
        return
    context = sum([job.computed_tokens + 1 for job in decodes])
    in_order = worst_first(decodes, view.now_s, costs.decode_s(BatchWork(len(decodes), context)))
    victims = reversed([*in_order, *others])
    for job in in_order:
        if batch.work.tokens >= most_tokens:
            return
        if job.request.id not in batch.preempted:
            add_running(batch, job, victims)
