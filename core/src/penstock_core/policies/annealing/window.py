"""From a replica's queue to what the annealer plans: who is in question, and what they ask.

The queue is planned through a window: a search over hundreds of requests would take milliseconds to decide
about requests whose turn is seconds away. In the window are those first whose deadline is still to come, the
nearest first, then those that are late already, the oldest first.

A request that has its first token already (it was preempted, or runs) has no TTFT left to keep, and its pace
is a time by which its last token is due.
"""

from collections.abc import Sequence
from heapq import nsmallest
from math import inf

from penstock_core.domain.request import Job
from penstock_core.domain.slo import NO_DEADLINE_S, Targets
from penstock_core.policies.annealing.plan_tables import Ask


def window(waiting: Sequence[Job], size: int, now_s: float) -> list[Job]:
    """The waiting jobs to plan, best effort aside, in the order that the search is given."""

    def urgency(job: Job) -> tuple[bool, float, float]:
        due_s = deadline_s(job)
        late = due_s < now_s
        return late, job.request.arrival_s if late else due_s, job.request.arrival_s

    return nsmallest(size, [job for job in waiting if not job.best_effort], key=urgency)


def deadline_s(job: Job) -> float:
    """When a waiting job is late for sure: its first token's time, else its last one's; infinite without."""
    targets, arrival_s = job.request.targets, job.request.arrival_s
    if job.generated_tokens:
        return job.due_s
    if targets.ttft_s is not None:
        return arrival_s + targets.ttft_s
    return NO_DEADLINE_S if targets.e2e_s is None else arrival_s + targets.e2e_s


def overdue(waiting: Sequence[Job], now_s: float, aging_s: float) -> Job | None:
    """The oldest job that is late by `aging_s`, or has no deadline and has waited for so long."""
    late = [job for job in waiting if now_s - _patient_until_s(job) > aging_s]
    return min(late, key=lambda job: (job.request.arrival_s, job.request.id)) if late else None


def _patient_until_s(job: Job) -> float:
    due_s = deadline_s(job)
    return job.request.arrival_s if due_s == NO_DEADLINE_S or job.best_effort else due_s


def ask(job: Job, now_s: float, share: float) -> Ask:
    """What a job asks of a plan. `share`: of the tokens predicted to come, how many are to be expected.

    Best effort asks for nothing but its tokens.
    """
    left = max(share * job.output_tokens_left, 1.0)
    targets, arrival_s = Targets() if job.best_effort else job.request.targets, job.request.arrival_s
    paces_s = [pace_s for pace_s in (targets.tpot_s, targets.answer_tpot_s) if pace_s is not None]
    tpot_s, e2e_s = min(paces_s, default=inf), inf if targets.e2e_s is None else targets.e2e_s
    waited_s = now_s - arrival_s
    if job.anchor is None:
        ttft_s = inf if targets.ttft_s is None else targets.ttft_s
        return Ask(job.pending_tokens, left - 1, waited_s, ttft_s, tpot_s, e2e_s)
    last_due_s = job.anchor.at_s + (job.generated_tokens + left - job.anchor.tokens) * tpot_s
    decode_tokens = left if job.decoding else left - 1
    context = job.computed_tokens if job.decoding else job.pending_tokens
    return Ask(context, decode_tokens, waited_s, inf, inf, min(e2e_s, last_due_s - arrival_s))
