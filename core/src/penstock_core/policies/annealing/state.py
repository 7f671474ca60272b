"""State of the annealing policy between steps, and what it learns from jobs that end.

A job that is no longer in the view has finished. Its generated tokens, over the prediction when it was first
seen, update the lengths of its tier (`lengths`). A job without generated tokens was cancelled and is ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.policies.annealing.lengths import AS_PREDICTED, Gaussian, Kinds, observed


@dataclass(frozen=True, slots=True)
class AnnealingState:
    """State between two steps.

    jobs: jobs of the last view, by id. predicted: their predicted lengths at arrival.
    shares: length of finished answers as a share of the prediction, by tier.
    queued: waiting jobs. starting: those of them that start now, in this order.
    next_s: start of the next batch. open: whether to plan before that.
    moving: the overdue job that none may overtake. plans: number of plans made.
    """

    jobs: Mapping[RequestId, Job] = field(default_factory=dict)
    predicted: Mapping[RequestId, int] = field(default_factory=dict)
    shares: Kinds = field(default_factory=dict)
    queued: frozenset[RequestId] = frozenset()
    starting: tuple[RequestId, ...] = ()
    next_s: float = inf
    open: bool = False
    moving: RequestId | None = None
    plans: int = 0

    def share(self, tier: str) -> Gaussian:
        """Return the distribution of lengths of a tier, as shares of the prediction."""
        return self.shares.get(tier, AS_PREDICTED)


def updated(memory: AnnealingState, view: ReplicaView) -> AnnealingState:
    """Return the state after this view.

    `open` is set if a job has arrived, ended, or been preempted since.
    """
    jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
    queued = frozenset([job.request.id for job in view.waiting])
    if jobs.keys() == memory.jobs.keys() and queued <= memory.queued:
        return replace(memory, jobs=jobs, queued=queued)
    shares = memory.shares
    for job_id, job in memory.jobs.items():  # in their order: a set's order differs between processes
        if job_id not in jobs:
            shares = _finished(shares, job, memory.predicted[job_id])
    predicted = {job_id: memory.predicted.get(job_id, job.output_tokens) for job_id, job in jobs.items()}
    moving = memory.moving if memory.moving in jobs else None
    return replace(
        memory, jobs=jobs, predicted=predicted, shares=shares, queued=queued, moving=moving, open=True
    )


def _finished(shares: Kinds, job: Job, predicted_tokens: int) -> Kinds:
    """Learn from a finished job. The step after which it was gone generated at least one more token."""
    if not job.generated_tokens:
        return shares
    return observed(shares, job.request.tier, (job.generated_tokens + 1) / max(predicted_tokens, 1))
