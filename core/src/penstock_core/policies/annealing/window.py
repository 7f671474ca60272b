"""Selects the waiting requests to plan, and derives their targets.

The queue is planned through a window, because a search over hundreds of requests would take milliseconds to
decide about requests that start seconds later. The window has first the requests whose deadline is still to
come, the nearest first, then those that are late already, the oldest first.

A request that has its first token already (it runs, or was preempted) has no TTFT target left, and its TPOT
target becomes a deadline of its last token.
"""

from collections.abc import Sequence
from heapq import nsmallest
from math import inf

from penstock_core.domain.request import Job
from penstock_core.domain.slo import NO_DEADLINE_S, Targets
from penstock_core.policies.annealing.plan_tables import PlanInput


def window(waiting: Sequence[Job], size: int, now_s: float) -> list[Job]:
    """Return the waiting jobs to plan, without best effort, in the search's initial order."""

    def urgency(job: Job) -> tuple[bool, float, float]:
        due_s = deadline_s(job)
        late = due_s < now_s
        return late, job.request.arrival_s if late else due_s, job.request.arrival_s

    return nsmallest(size, [job for job in waiting if not job.best_effort], key=urgency)


def deadline_s(job: Job) -> float:
    """Return a waiting job's deadline: the first token's, else the last one's; infinite without."""
    targets, arrival_s = job.request.targets, job.request.arrival_s
    if job.generated_tokens:
        return job.due_s
    if targets.ttft_s is not None:
        return arrival_s + targets.ttft_s
    return NO_DEADLINE_S if targets.e2e_s is None else arrival_s + targets.e2e_s


def overdue(waiting: Sequence[Job], now_s: float, aging_s: float) -> Job | None:
    """Return the oldest job that is late by `aging_s`, or has waited for that long without a deadline."""
    late = [job for job in waiting if now_s - _patient_until_s(job) > aging_s]
    return min(late, key=lambda job: (job.request.arrival_s, job.request.id)) if late else None


def _patient_until_s(job: Job) -> float:
    due_s = deadline_s(job)
    return job.request.arrival_s if due_s == NO_DEADLINE_S or job.best_effort else due_s


def plan_input(job: Job, now_s: float, share: float) -> PlanInput:
    """Return a job's row for planning. share: expected share of the tokens predicted to come.

    Best effort has no targets.
    """
    left = max(share * job.output_tokens_left, 1.0)
    targets, arrival_s = Targets() if job.best_effort else job.request.targets, job.request.arrival_s
    targets_s = [tpot_s for tpot_s in (targets.tpot_s, targets.answer_tpot_s) if tpot_s is not None]
    tpot_s, e2e_s = min(targets_s, default=inf), inf if targets.e2e_s is None else targets.e2e_s
    waited_s = now_s - arrival_s
    if job.anchor is None:
        ttft_s = inf if targets.ttft_s is None else targets.ttft_s
        return PlanInput(job.pending_tokens, left - 1, waited_s, ttft_s, tpot_s, e2e_s)
    last_due_s = job.anchor.at_s + (job.generated_tokens + left - job.anchor.tokens) * tpot_s
    decode_tokens = left if job.decoding else left - 1
    context = job.computed_tokens if job.decoding else job.pending_tokens
    return PlanInput(context, decode_tokens, waited_s, inf, inf, min(e2e_s, last_due_s - arrival_s))
