"""Checks whether candidates fit beside the admitted requests: a feasible plan, KV blocks, slots, price."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import KvCache
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.verdict import Reason
from penstock_core.forecast.kv_forecast import forecast
from penstock_core.policies.slos_serve.batch_plan import BatchPlan, best_plan
from penstock_core.policies.slos_serve.lead import has_lead
from penstock_core.policies.slos_serve.price import CommittedShares, too_costly
from penstock_core.policies.slos_serve.workload import AdmittedSet


class Feasible(NamedTuple):
    """The candidates fit.

    plan: a plan that meets every deadline. first_token_s: time of each prompt's first token, by id.
    step_s: duration of a batch of all decodes alone.
    """

    plan: BatchPlan
    first_token_s: dict[RequestId, float]
    step_s: float


class Infeasible(NamedTuple):
    """The candidates do not fit.

    step_s: duration of a batch of all decodes alone. crowded_steps: number of steps in which the KV cache has
        too few blocks for them.
    """

    reason: Reason
    step_s: float
    crowded_steps: int = 0


def feasible(
    admitted: AdmittedSet, new: Sequence[Job] = (), *, with_lead: bool = True
) -> Feasible | Infeasible:
    """Return whether these candidates (prompts, none best effort) fit beside the admitted requests.

    with_lead: whether the candidates' own first tokens must be early enough for slow steps (`lead`).
    """
    together = admitted.with_requests(*new)
    view, prompts, step_s = together.view, together.prompts, together.step_s
    if len(together.jobs) > view.limits.running:
        return Infeasible(Reason.DECODE_BUDGET, step_s)
    start_s = max(view.now_s, view.busy_until_s)
    alone_s = [view.model.prefill_seconds(job.pending_tokens, job.computed_tokens) for job in new]
    if any([start_s + least_s > job.due_s for least_s, job in zip(alone_s, new, strict=True)]):
        return Infeasible(Reason.PREFILL_BUDGET, step_s)
    plan = best_plan(together)
    if not plan.sustainable:
        return Infeasible(Reason.DECODE_BUDGET, step_s)
    slow = view.model.slow_excess > 0.0
    if not plan.in_time or (slow and not has_lead(view, plan, prompts, new, own=with_lead)):
        return Infeasible(Reason.PREFILL_BUDGET, step_s)
    peak = _Peak.of(view.kv, plan, together.jobs)
    if peak.share > 1.0:
        return Infeasible(Reason.KV_MEMORY, step_s, peak.over_in_steps)
    first_token_s = {job.request.id: at_s for job, at_s in zip(prompts, plan.first_token_s, strict=True)}
    committed = [
        CommittedShares(
            job, peak.share, (first_token_s[job.request.id] - view.now_s) / (job.due_s - view.now_s)
        )
        for job in new
    ]
    resource = too_costly(admitted.usual, committed) if new else None
    if resource is not None:
        return Infeasible(resource, step_s, peak.over_in_steps)
    return Feasible(plan, first_token_s, step_s)


class _Peak(NamedTuple):
    """Future peak of the KV cache. share: share of all blocks. over_in_steps: steps until it has passed."""

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
