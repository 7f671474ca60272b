"""Promises made later: best effort that can still be served in time is admitted after all.

A request that no replica could promise anything is served as best effort, and keeps the targets that it
came with. Load changes within milliseconds: others end sooner than predicted, or are cancelled. So before
every batch the cheapest such request whose time has not run out is tried again, and promised its targets
where they now fit. That is FluidServe's holding, without a client that waits for its verdict.
"""

from dataclasses import replace

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, promoted
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.policies.slos_serve.feasibility import Fit, Promised, fit
from penstock_core.timing.time_model import BatchWork


def promotable(view: ReplicaView) -> Job | None:
    """A best-effort job whose SLOs can be kept after all, as it will be admitted."""
    hopeful = [job for job in (*view.running, *view.waiting) if _hopeful(view, job)]
    if not hopeful:
        return None
    job = promoted(min(hopeful, key=lambda job: (job.pending_tokens, job.request.id)))
    there = [other for other in (*view.running, *view.waiting) if not other.best_effort]
    return job if isinstance(fit(view, Promised.of(there), [job]), Fit) else None


def with_promoted(view: ReplicaView, job: Job) -> ReplicaView:
    """The view with this job admitted."""
    running, waiting = (
        tuple([job if other.request.id == job.request.id else other for other in jobs])
        for jobs in (view.running, view.waiting)
    )
    return replace(view, running=running, waiting=waiting)


def _hopeful(view: ReplicaView, job: Job) -> bool:
    if not job.best_effort or job.generated_tokens or not view.now_s <= job.due_s < NO_DEADLINE_S:
        return False
    return view.now_s + view.model.seconds(BatchWork(job.pending_tokens)) <= job.due_s
