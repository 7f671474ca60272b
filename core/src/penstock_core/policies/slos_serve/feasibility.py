"""Whether newcomers fit beside what was promised: a course that keeps all, blocks, seats, and a price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, isfinite
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import KvCache, ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Reason
from penstock_core.forecast.kv_forecast import forecast
from penstock_core.policies.slos_serve.batching_rules import Way, way
from penstock_core.timing.time_model import BatchWork

MEMORY_STEEPNESS, TIME_STEEPNESS = 9.0, 4.0
"""With all memory promised, or all the time of a first token spent, a newcomer may cost as much as is usual
there; with less, more, by e to the power of this times the share that is left."""

SPARE_STEPS = 0.5
"""Where decodes are to wait for prompts, those must be done by so much of a batch of decodes before they are
due: who can wait hangs on milliseconds, and if it comes out otherwise a prompt takes a batch more."""

FEW_REQUESTS = 4
"""Promised requests below which there is no telling what is usual."""


@dataclass(frozen=True)
class Promised:
    """Requests with a claim. prompts: by deadline."""

    decodes: tuple[Job, ...]
    prompts: tuple[Job, ...]

    @staticmethod
    def of(jobs: Sequence[Job]) -> "Promised":
        """Those that decode, and those that do not yet."""
        prompts = sorted([job for job in jobs if not job.decoding], key=deadline_order)
        return Promised(tuple([job for job in jobs if job.decoding]), tuple(prompts))

    def beside(self, jobs: Sequence[Job]) -> "Promised":
        """With these newcomers too."""
        return Promised(self.decodes, tuple(sorted([*self.prompts, *jobs], key=deadline_order)))

    @cached_property
    def jobs(self) -> tuple[Job, ...]:
        """All of them."""
        return self.decodes + self.prompts

    @cached_property
    def usual_memory(self) -> float:
        """Their memory cost, on average."""
        return sum([_memory_cost(job) for job in self.jobs]) / len(self.jobs)

    @cached_property
    def usual_work(self) -> float:
        """Their work, on average."""
        return sum([_work(job) for job in self.jobs]) / len(self.jobs)


class Fit(NamedTuple):
    """They fit.

    way: on which they do. first_token_s: when each prompt's first token is out, by id.
    step_s: a batch of all decodes alone.
    """

    way: Way
    first_token_s: dict[RequestId, float]
    step_s: float


class Misfit(NamedTuple):
    """They do not. earliest_s: from now until they might."""

    reason: Reason
    earliest_s: float | None


def fit(view: ReplicaView, promised: Promised, new: Sequence[Job]) -> Fit | Misfit:
    """Whether these newcomers (none best effort) fit beside the promised."""
    together = promised.beside(new)
    if len(together.jobs) > view.limits.running:
        return Misfit(Reason.DECODE_BUDGET, _until_ends_s(view, together))
    free_s = max(view.now_s, view.busy_until_s)
    if any(free_s + _alone_s(view, job) > job.due_s for job in new):
        return Misfit(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new))
    foreseen = way(view, together.decodes, together.prompts)
    if not foreseen.course.steady:
        return Misfit(Reason.DECODE_BUDGET, _until_ends_s(view, together))
    if not foreseen.course.keeps or not _in_good_time(foreseen, _step_s(view, together)):
        return Misfit(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new))
    peak = _Peak.of(view.kv, foreseen)
    if not peak.fits or not _worth_it(promised, new, peak.share):
        return Misfit(Reason.KV_MEMORY, peak.over_in_steps * _step_s(view, together))
    ids = [job.request.id for job in together.prompts]
    first_token_s = dict(zip(ids, foreseen.course.done_s, strict=True))
    if not _in_time_worth_it(view, promised, new, first_token_s):
        return Misfit(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new))
    return Fit(foreseen, first_token_s, _step_s(view, together))


class _Peak(NamedTuple):
    """The future peak of the KV cache. share: of all blocks. over_in_steps: after which it has passed."""

    share: float
    over_in_steps: int

    @property
    def fits(self) -> bool:
        return self.share <= 1.0

    @staticmethod
    def of(kv: KvCache, foreseen: Way) -> "_Peak":
        rows, drafts = foreseen.outset.rows, max(foreseen.mode.drafting.values(), default=0)
        left = rows.left.astype(np.int64)
        delay: Ints = np.zeros(len(left), np.int64)
        delay[len(left) - len(foreseen.course.batches) :] = foreseen.course.batches
        delay *= 1 + drafts
        sizes = rows.context.astype(np.int64) + drafts
        future = forecast(sizes, left, kv.block_tokens, delay)
        crowded = np.flatnonzero(future.usage > kv.total_blocks)
        last = int(future.ends[crowded[-1]]) if len(crowded) else 0
        return _Peak(future.peak_blocks / kv.total_blocks, last + 1)


def _in_good_time(foreseen: Way, step_s: float) -> bool:
    """Whether every prompt that decodes wait for has time to spare."""
    if not foreseen.mode.skips:
        return True
    spare_s = foreseen.outset.prompts.due_s - np.array(foreseen.course.done_s)
    return bool((spare_s >= SPARE_STEPS * step_s).all())


def _worth_it(promised: Promised, new: Sequence[Job], share: float) -> bool:
    """Whether every newcomer is cheap enough for so much memory promised."""
    if len(promised.jobs) < FEW_REQUESTS:
        return True
    bearable = promised.usual_memory * exp(MEMORY_STEEPNESS * (1.0 - share))
    return all([_memory_cost(job) <= bearable for job in new])


def _in_time_worth_it(
    view: ReplicaView, promised: Promised, new: Sequence[Job], first_token_s: Mapping[RequestId, float]
) -> bool:
    """Whether every newcomer's work is little enough for so much of its time as its first token takes."""
    if len(promised.jobs) < FEW_REQUESTS:
        return True
    for job in new:
        spent = (first_token_s[job.request.id] - view.now_s) / (job.due_s - view.now_s)
        if _work(job) > promised.usual_work * exp(TIME_STEEPNESS * (1.0 - spent)):
            return False
    return True


def _work(job: Job) -> float:
    """Tokens of its prompt and its answer, for its value."""
    return (job.request.prompt_tokens + job.output_tokens) / job.request.value


def _memory_cost(job: Job) -> float:
    """Token-steps of KV cache that it takes in its whole life, for its value."""
    answer = job.output_tokens
    return answer * (job.request.prompt_tokens + answer / 2) / job.request.value


def _alone_s(view: ReplicaView, job: Job) -> float:
    return view.model.seconds(BatchWork(min(job.pending_tokens, view.limits.batch_tokens)))


def _step_s(view: ReplicaView, together: Promised) -> float:
    jobs = together.jobs
    context = sum([job.request.prompt_tokens + job.generated_tokens for job in jobs])
    return view.model.seconds(BatchWork(max(len(jobs), 1), context))


def _until_ends_s(view: ReplicaView, together: Promised) -> float:
    """From now until one of them has ended."""
    return min([job.output_tokens_left for job in together.jobs], default=1) * _step_s(view, together)


def _until_computed_s(view: ReplicaView, together: Promised, new: Sequence[Job]) -> float:
    """From now until the prompts that are there would leave a newcomer like these the time it needs."""
    tokens = sum([job.pending_tokens for job in together.prompts])
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    slack_s = min([job.due_s - job.request.arrival_s for job in new], default=inf)
    busy_s = waited_s + view.model.seconds(BatchWork(tokens + len(together.decodes)))
    return max(busy_s - slack_s if isfinite(slack_s) else 0.0, _step_s(view, together))
