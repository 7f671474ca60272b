"""What the annealing policy remembers from step to step, and what it learns from who is there and who is not.

A job that was there and is not any more has finished. What it had brought out by then, over what was
predicted when it was first seen, teaches its tier's lengths (`lengths`). One that had brought out
nothing was cancelled, and teaches nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId
from penstock_core.policies.annealing.lengths import AS_PREDICTED, Gaussian, Kinds, observed


@dataclass(frozen=True, slots=True)
class Remembered:
    """Between two steps.

    jobs: who was there, by id. predicted: the answer lengths that they came with.
    shares: of the predicted lengths, how much finished answers took, by tier.
    queued: who waited. starting: who of them is to start now, in this order.
    next_s: when it is the turn of the batch after them. open: whether to plan before that.
    moving: the one late job that nobody may overtake. plans: how many were made.
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
        """How much of its predicted length an answer of this tier takes."""
        return self.shares.get(tier, AS_PREDICTED)


def seen(memory: Remembered, view: ReplicaView) -> Remembered:
    """With what this view tells. `open` where somebody has come, gone, or been preempted since."""
    jobs = {job.request.id: job for job in (*view.running, *view.waiting)}
    queued = frozenset([job.request.id for job in view.waiting])
    if jobs.keys() == memory.jobs.keys() and queued <= memory.queued:
        return replace(memory, jobs=jobs, queued=queued)
    shares = memory.shares
    for job_id, job in memory.jobs.items():  # in their order: a set's order changes from process to process
        if job_id not in jobs:
            shares = _finished(shares, job, memory.predicted[job_id])
    predicted = {job_id: memory.predicted.get(job_id, job.output_tokens) for job_id, job in jobs.items()}
    moving = memory.moving if memory.moving in jobs else None
    return replace(
        memory, jobs=jobs, predicted=predicted, shares=shares, queued=queued, moving=moving, open=True
    )


def _finished(shares: Kinds, job: Job, predicted_tokens: int) -> Kinds:
    """The step that it is gone after brought out at least one more."""
    if not job.generated_tokens:
        return shares
    return observed(shares, job.request.tier, (job.generated_tokens + 1) / max(predicted_tokens, 1))
