"""Checks whether candidates fit beside the admitted requests: a feasible plan, KV blocks, slots, price."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import KvCache, ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Reason
from penstock_core.forecast.kv_forecast import forecast
from penstock_core.forecast.prefill_queue import full_batches
from penstock_core.policies.slos_serve.batch_plan import BatchPlan, best_plan
from penstock_core.policies.slos_serve.price import CommittedShares, too_costly
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_core.timing.step_tail import LATE_FIRST_TOKENS, spare_steps
from penstock_core.timing.time_model import BatchWork


class Feasible(NamedTuple):
    """They fit.

    plan: that meets every deadline. first_token_s: when each prompt's first token is generated, by id.
    step_s: a batch of all decodes alone.
    """

    plan: BatchPlan
    first_token_s: dict[RequestId, float]
    step_s: float


class Infeasible(NamedTuple):
    """They do not. earliest_s: from now until they might."""

    reason: Reason
    earliest_s: float | None


def feasible(
    view: ReplicaView, admitted: AdmittedSet, new: Sequence[Job], *, with_lead: bool = True
) -> Feasible | Infeasible:
    """Return whether these candidates (prompts, none best effort) fit beside the admitted requests.

    with_lead: whether their own first tokens must be planned early enough for slow steps (`_have_lead`).
    """
    prompts = sorted([*admitted.prompts, *new], key=deadline_order)
    together = AdmittedSet(admitted.decodes, prompts, admitted.rejected)
    step_s = _step_s(view, together)
    if len(together.decodes) + len(prompts) > view.limits.running:
        return Infeasible(Reason.DECODE_BUDGET, _until_ends_s(together, step_s))
    start_s = max(view.now_s, view.busy_until_s)
    if any([start_s + _alone_s(view, job) > job.due_s for job in new]):
        return Infeasible(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new, step_s))
    plan = best_plan(view, together)
    if not plan.sustainable:
        return Infeasible(Reason.DECODE_BUDGET, _until_ends_s(together, step_s))
    if not plan.in_time or not _have_lead(view, plan, prompts, new, with_lead):
        return Infeasible(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new, step_s))
    peak = _Peak.of(view.kv, plan, [*together.decodes, *prompts])
    if peak.share > 1.0:
        return Infeasible(Reason.KV_MEMORY, peak.over_in_steps * step_s)
    first_token_s = {job.request.id: at_s for job, at_s in zip(prompts, plan.first_token_s, strict=True)}
    committed = [
        CommittedShares(
            job, peak.share, (first_token_s[job.request.id] - view.now_s) / (job.due_s - view.now_s)
        )
        for job in new
    ]
    resource = too_costly(admitted.usual, committed) if new else None
    if resource is Reason.KV_MEMORY:
        return Infeasible(resource, peak.over_in_steps * step_s)
    if resource is Reason.PREFILL_BUDGET:
        return Infeasible(resource, _until_computed_s(view, together, new, step_s))
    return Feasible(plan, first_token_s, step_s)


def possible_when_idle(job: Job, view: ReplicaView) -> bool:
    """Return whether an idle replica could meet this job's SLO, or hold it where it is best effort."""
    kv, model = view.kv, view.model
    size_tokens = job.request.prompt_tokens + job.generated_tokens
    if job.best_effort:
        return kv.blocks_for(size_tokens + 1) <= kv.total_blocks
    peak_tokens = size_tokens + job.output_tokens_left - 1
    if kv.blocks_for(peak_tokens) > kv.total_blocks:
        return False
    if job.tpot_s is not None and model.seconds(BatchWork(1, peak_tokens)) > job.tpot_s:
        return False
    return full_batches(view, [job], 0, 0).seconds <= job.due_s - job.request.arrival_s


class _Peak(NamedTuple):
    """The future peak of the KV cache. share: of all blocks. over_in_steps: after which it has passed."""

    share: float
    over_in_steps: int

    @staticmethod
    def of(kv: KvCache, plan: BatchPlan, jobs: Sequence[Job]) -> "_Peak":
        rows, drafts = plan.rows, max(plan.rule.speculation.values(), default=0)
        left = rows.left.astype(np.int64)
        delay: Ints = np.zeros(len(left), np.int64)
        delay[len(left) - len(plan.batches) :] = plan.batches
        delay *= 1 + drafts
        future = forecast(jobs, kv, rows.context.astype(np.int64) + drafts, left, delay)
        usage = future.blocks.sum(axis=0)
        crowded = np.flatnonzero(usage > kv.total_blocks)
        last = int(future.ends[crowded[-1]]) if len(crowded) else 0
        return _Peak(int(usage.max()) / kv.total_blocks, last + 1)


def _have_lead(
    view: ReplicaView, plan: BatchPlan, prompts: Sequence[Job], new: Sequence[Job], own: bool
) -> bool:
    """Return whether candidates and prompts behind them have time for slow steps before their first tokens.

    own: whether that is asked of candidates themselves. A slow step may take as long as the longest batch.
    """
    model, start_s = view.model, max(view.now_s, view.busy_until_s)
    if not model.slow_excess:
        return True
    candidates, in_progress = {job.request.id for job in new}, start_s > view.now_s
    first = min([place for place, job in enumerate(prompts) if job.request.id in candidates], default=0)
    for place in range(first, len(prompts)):
        job, at_s, batches = prompts[place], plan.first_token_s[place], plan.batches[place]
        spare = spare_steps(model.slow_chance, batches + in_progress, LATE_FIRST_TOKENS)
        lead_s = spare * model.slow_excess * min(plan.rule.longest_s, at_s - start_s)
        asked = own or job.request.id not in candidates
        if asked and at_s <= job.due_s < at_s + lead_s:
            return False
    return True


def _alone_s(view: ReplicaView, job: Job) -> float:
    return view.model.seconds(BatchWork(min(job.pending_tokens, view.limits.batch_tokens)))


def _step_s(view: ReplicaView, together: AdmittedSet) -> float:
    jobs = [*together.decodes, *together.prompts]
    context = sum([job.request.prompt_tokens + job.generated_tokens for job in jobs])
    return view.model.seconds(BatchWork(max(len(jobs), 1), context))


def _until_ends_s(together: AdmittedSet, step_s: float) -> float:
    """From now until one of them has ended."""
    return min([job.output_tokens_left for job in (*together.decodes, *together.prompts)], default=1) * step_s


def _until_computed_s(view: ReplicaView, together: AdmittedSet, new: Sequence[Job], step_s: float) -> float:
    """From now until the prompts that are there would leave candidates like these the time they need."""
    tokens = sum([job.pending_tokens for job in together.prompts])
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    slack_s = min([job.due_s - job.request.arrival_s for job in new], default=inf)
    busy_s = waited_s + view.model.seconds(BatchWork(tokens + len(together.decodes)))
    return max(busy_s - slack_s, step_s)
