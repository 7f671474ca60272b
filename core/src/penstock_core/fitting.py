"""Whether newcomers fit beside what was promised: a course that keeps all, blocks, seats, and a price."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, inf, isfinite
from typing import NamedTuple

import numpy as np

from penstock_core import kv_peak
from penstock_core.job_columns import columns
from penstock_core.kv_peak import Ints
from penstock_core.modes import Way, way
from penstock_core.replica_view import ReplicaView
from penstock_core.request import Job, RequestId, deadline_order
from penstock_core.time_model import BatchWork
from penstock_core.verdict import Reason

MEMORY_STEEPNESS, PROMPT_STEEPNESS = 9.0, 3.0
"""With all memory promised, or all the time of a first token spent, a newcomer may cost as much as is usual
there; with less, more, by e to the power of this times the share that is left."""

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
    def usual_prompt(self) -> float:
        """Tokens of a prompt for its request's value, on average."""
        return sum([job.request.prompt_tokens / job.request.value for job in self.jobs]) / len(self.jobs)


class Fit(NamedTuple):
    """They fit.

    first_token_s: when each prompt's first token is out, by id. step_s: a batch of all decodes alone.
    """

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
    if not foreseen.course.keeps:
        return Misfit(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new))
    peak = _Peak.of(view, together, foreseen)
    if not peak.fits or not _worth_it(promised, new, peak.share):
        return Misfit(Reason.KV_MEMORY, peak.over_in_steps * _step_s(view, together))
    ids = [job.request.id for job in together.prompts]
    first_token_s = dict(zip(ids, foreseen.course.done_s, strict=True))
    if not _prompts_worth_it(view, promised, new, first_token_s):
        return Misfit(Reason.PREFILL_BUDGET, _until_computed_s(view, together, new))
    return Fit(first_token_s, _step_s(view, together))


class _Peak(NamedTuple):
    """The future peak of the KV cache. share: of all blocks. over_in_steps: after which it has passed."""

    share: float
    over_in_steps: int

    @property
    def fits(self) -> bool:
        return self.share <= 1.0

    @staticmethod
    def of(view: ReplicaView, together: Promised, foreseen: Way) -> "_Peak":
        jobs, drafts = columns(together.jobs), max(foreseen.mode.drafting.values(), default=0)
        waits = np.array([0] * len(together.decodes) + list(foreseen.course.batches), np.int64)
        delay: Ints = waits * (1 + drafts)
        ends = kv_peak.ends_of_buckets(jobs.output_tokens_left - 1 + delay)
        size = view.kv.block_tokens
        blocks = kv_peak.usage(jobs.size_tokens + drafts, jobs.output_tokens_left, delay, ends, size).sum(
            axis=0
        )
        crowded = np.flatnonzero(blocks > view.kv.total_blocks)
        last = int(ends[crowded[-1]]) if len(crowded) else 0
        return _Peak(float(blocks.max(initial=0)) / view.kv.total_blocks, last + 1)


def _worth_it(promised: Promised, new: Sequence[Job], share: float) -> bool:
    """Whether every newcomer is cheap enough for so much memory promised."""
    if len(promised.jobs) < FEW_REQUESTS:
        return True
    bearable = promised.usual_memory * exp(MEMORY_STEEPNESS * (1.0 - share))
    return all([_memory_cost(job) <= bearable for job in new])


def _prompts_worth_it(
    view: ReplicaView, promised: Promised, new: Sequence[Job], first_token_s: Mapping[RequestId, float]
) -> bool:
    """Whether every newcomer's prompt is short enough for so much of its time as passes before it is done."""
    if len(promised.jobs) < FEW_REQUESTS:
        return True
    usual = promised.usual_prompt
    for job in new:
        spent = (first_token_s[job.request.id] - view.now_s) / (job.due_s - view.now_s)
        if job.pending_tokens / job.request.value > usual * exp(PROMPT_STEEPNESS * (1.0 - spent)):
            return False
    return True


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
