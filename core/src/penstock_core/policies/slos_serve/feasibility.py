"""Whether candidates fit beside the admitted requests: a feasible plan, KV blocks, slots and the price."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import KvCache, ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Reason
from penstock_core.forecast.kv_forecast import forecast
from penstock_core.policies.slos_serve import price
from penstock_core.policies.slos_serve.batch_plan import BatchPlan, InitialState, best_plan, rules
from penstock_core.timing.time_model import BatchWork, chunk_work


@dataclass(frozen=True)
class AdmittedSet:
    """Requests whose SLO must be met. prompts: by deadline."""

    decodes: tuple[Job, ...]
    prompts: tuple[Job, ...]

    @staticmethod
    def of(view: ReplicaView, protected: Job | None = None) -> "AdmittedSet":
        """Return the admitted requests of a replica, and the best-effort one that has waited too long."""
        admitted = [job for job in (*view.running, *view.waiting) if not job.best_effort]
        return AdmittedSet((), ()).beside([*admitted, *([] if protected is None else [protected])])

    def beside(self, jobs: Sequence[Job]) -> "AdmittedSet":
        """Return the set with these requests."""
        decodes = tuple([job for job in jobs if job.decoding])
        prompts = [*self.prompts, *[job for job in jobs if not job.decoding]]
        return AdmittedSet(self.decodes + decodes, tuple(sorted(prompts, key=deadline_order)))

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All of them."""
        return self.decodes + self.prompts

    @cached_property
    def usual_memory(self) -> float:
        """Their memory cost, on average."""
        return price.usual(self.jobs, price.memory)

    @cached_property
    def usual_work(self) -> float:
        """Their work, on average."""
        return price.usual(self.jobs, price.work)


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


def feasible(view: ReplicaView, admitted: AdmittedSet, new: Sequence[Job]) -> Feasible | Infeasible:
    """Return whether these candidates (none best effort) fit beside the admitted requests."""
    together = admitted.beside(new)
    step_s = _step_s(view, together)
    if len(together.jobs) > view.limits.running:
        return Infeasible(Reason.DECODE_BUDGET, _until_ends_s(together, step_s))
    state = InitialState.of(view, together.decodes, together.prompts)
    if any(state.start_s + _alone_s(view, job) > job.due_s for job in new):
        return Infeasible(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new, step_s))
    found = best_plan(state, rules(view, together.jobs))
    if not found.sustainable:
        return Infeasible(Reason.DECODE_BUDGET, _until_ends_s(together, step_s))
    if not found.in_time:
        return Infeasible(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new, step_s))
    peak, first_token_s = _Peak.of(view.kv, state, found), _first_tokens_s(together, found)
    promised = [(job, peak.share) for job in new]
    if peak.share > 1.0 or not price.affordable(
        admitted.usual_memory, price.memory, price.MEMORY_STEEPNESS, promised
    ):
        return Infeasible(Reason.KV_MEMORY, peak.over_in_steps * step_s)
    spent = [(job, (first_token_s[job.request.id] - view.now_s) / (job.due_s - view.now_s)) for job in new]
    if not price.affordable(admitted.usual_work, price.work, price.TIME_STEEPNESS, spent):
        return Infeasible(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new, step_s))
    return Feasible(found, first_token_s, step_s)


def possible_when_idle(job: Job, view: ReplicaView) -> bool:
    """Return whether an idle replica could meet this job's SLO, or hold it where it is best effort."""
    kv, model = view.kv, view.model
    size_tokens = job.request.prompt_tokens + job.generated_tokens
    if job.best_effort:
        return kv.blocks_for(size_tokens + 1) <= kv.total_blocks
    peak_tokens = size_tokens + job.output_tokens_left - 1
    if kv.blocks_for(peak_tokens) > kv.total_blocks:
        return False
    if job.pace_s is not None and model.seconds(BatchWork(1, peak_tokens)) > job.pace_s:
        return False
    pending, done, alone_s = job.pending_tokens, 0, 0.0
    while done < pending:
        chunk = min(view.limits.batch_tokens, pending - done)
        alone_s += model.seconds(BatchWork(chunk, 0, chunk_work(chunk, done)))
        done += chunk
    return alone_s <= job.due_s - job.request.arrival_s


class _Peak(NamedTuple):
    """The future peak of the KV cache. share: of all blocks. over_in_steps: after which it has passed."""

    share: float
    over_in_steps: int

    @staticmethod
    def of(kv: KvCache, state: InitialState, found: BatchPlan) -> "_Peak":
        rows, drafts = state.rows, max(found.rule.speculation.values(), default=0)
        left = rows.left.astype(np.int64)
        delay: Ints = np.zeros(len(left), np.int64)
        delay[len(left) - len(found.batches) :] = found.batches
        delay *= 1 + drafts
        future = forecast(rows.context.astype(np.int64) + drafts, left, kv.block_tokens, delay)
        crowded = np.flatnonzero(future.usage > kv.total_blocks)
        last = int(future.ends[crowded[-1]]) if len(crowded) else 0
        return _Peak(future.peak_blocks / kv.total_blocks, last + 1)


def _first_tokens_s(together: AdmittedSet, found: BatchPlan) -> dict[RequestId, float]:
    return {job.request.id: at_s for job, at_s in zip(together.prompts, found.first_token_s, strict=True)}


def _alone_s(view: ReplicaView, job: Job) -> float:
    return view.model.seconds(BatchWork(min(job.pending_tokens, view.limits.batch_tokens)))


def _step_s(view: ReplicaView, together: AdmittedSet) -> float:
    jobs = together.jobs
    context = sum([job.request.prompt_tokens + job.generated_tokens for job in jobs])
    return view.model.seconds(BatchWork(max(len(jobs), 1), context))


def _until_ends_s(together: AdmittedSet, step_s: float) -> float:
    """From now until one of them has ended."""
    return min([job.output_tokens_left for job in together.jobs], default=1) * step_s


def _until_computed_s(view: ReplicaView, together: AdmittedSet, new: Sequence[Job], step_s: float) -> float:
    """From now until the prompts that are there would leave candidates like these the time they need."""
    tokens = sum([job.pending_tokens for job in together.prompts])
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    slack_s = min([job.due_s - job.request.arrival_s for job in new], default=inf)
    busy_s = waited_s + view.model.seconds(BatchWork(tokens + len(together.decodes)))
    return max(busy_s - slack_s if isfinite(slack_s) else 0.0, step_s)
