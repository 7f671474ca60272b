"""The most that a candidate may cost, as a function of the replica's utilization.

A replica that fills up must not admit every request that fits: one long request now may displace several
short ones a moment later. So the more of a resource is committed, the cheaper a candidate has to be, relative
to the admitted requests and to its value: the exponential price of online admission [Awerbuch, Azar and
Plotkin, FOCS 1993]. A candidate may cost `e^(steepness * free share)` times as much as the usual request, so
exactly as much if the whole resource is committed.
"""

from collections.abc import Callable, Iterable, Sequence
from math import exp, inf
from typing import NamedTuple

from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Reason

MEMORY_STEEPNESS, TIME_STEEPNESS = 9.0, 4.0
"""Without the prices attainment falls by up to 2 points near capacity and 4.5 at three times that
(`bench/results/ablations.md`)."""

FEW_REQUESTS = 4
"""Fewest admitted requests from which usual costs are computed. This minimum gains up to 2 points of
attainment in bursts (`bench/results/ablations.md`)."""

Cost = Callable[[Job], float]


class UsualCosts(NamedTuple):
    """Mean costs of admitted requests; infinite if there are too few."""

    memory: float
    work: float


class CommittedShares(NamedTuple):
    """Shares of the KV cache and of the time before its deadline that are committed with a candidate."""

    job: Job
    memory: float
    time: float


def usual_costs(admitted: Sequence[Job]) -> UsualCosts:
    """Return the mean cost of these requests."""
    if len(admitted) < FEW_REQUESTS:
        return UsualCosts(inf, inf)
    memory_cost, work_cost = (sum([cost(job) for job in admitted]) for cost in (memory, work))
    return UsualCosts(memory_cost / len(admitted), work_cost / len(admitted))


def too_costly(usual: UsualCosts, committed: Sequence[CommittedShares]) -> Reason | None:
    """Return the reason if a candidate costs too much of a resource; else None."""
    shares = [(share.job, share.memory) for share in committed]
    if not affordable(usual.memory, memory, MEMORY_STEEPNESS, shares):
        return Reason.KV_MEMORY
    shares = [(share.job, share.time) for share in committed]
    if not affordable(usual.work, work, TIME_STEEPNESS, shares):
        return Reason.PREFILL_BUDGET
    return None


def affordable(usual_cost: float, cost: Cost, steepness: float, shares: Iterable[tuple[Job, float]]) -> bool:
    """Return whether every candidate is cheap enough for the share of the resource committed with it."""
    return all([cost(job) <= usual_cost * exp(steepness * (1.0 - share)) for job, share in shares])


def work(job: Job) -> float:
    """Return a job's tokens of prompt and answer, divided by its value."""
    return (job.request.prompt_tokens + job.output_tokens) / job.request.value


def memory(job: Job) -> float:
    """Return the token-steps of KV cache of a job's whole lifetime, divided by its value."""
    answer = job.output_tokens
    return answer * (job.request.prompt_tokens + answer / 2) / job.request.value


def work_left(job: Job) -> float:
    """Return a job's tokens that are still to be computed, divided by its value."""
    return (job.pending_tokens + job.output_tokens_left) / job.request.value
