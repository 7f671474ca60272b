"""Promotion: before every batch, a best-effort request that can still meet its SLO is admitted.

A request that no replica could admit is served as best effort, and keeps its targets. Load changes within
milliseconds: other requests end sooner than predicted, or are cancelled. FluidServe holds such requests back;
here the client does not wait for its verdict. Promotion adds 1 to 7 points of attainment in every scenario.

The cheapest is promoted if it fits, one per batch, because a promoted request takes time and memory from
requests that have not arrived yet. The dynamic program, which considers all requests that can still meet
their SLO, decides whether the others are worth more without it; then the cheapest of those is promoted.

Its client was answered best effort, so on an engine with slow steps it needs no lead for them
(`feasibility`).
"""

from collections.abc import Sequence
from dataclasses import replace

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order, promoted
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.policies.slos_serve.choose import propose
from penstock_core.policies.slos_serve.feasibility import Feasible, feasible
from penstock_core.policies.slos_serve.workload import Workload
from penstock_core.timing.time_model import BatchWork


def to_promote(view: ReplicaView, workload: Workload) -> Job | None:
    """Return the best-effort request to promote now, as it will be admitted, if there is one."""
    candidates, admitted = _candidates(view, workload.best_effort), workload.admitted
    cheapest = min(candidates, key=_cost, default=None)
    if cheapest is None or not isinstance(feasible(view, admitted, [cheapest], with_lead=False), Feasible):
        return None
    others = [job for job in candidates if job is not cheapest]
    with_it = propose(view, admitted, others, chosen=[cheapest]) if others else []
    without = propose(view, admitted, others) if others else []
    if _worth(without) <= _worth([cheapest, *with_it]):
        return cheapest
    best = min(without, key=_cost)
    return best if isinstance(feasible(view, admitted, [best], with_lead=False), Feasible) else cheapest


def with_promoted(view: ReplicaView, job: Job) -> ReplicaView:
    """Return the view with this request admitted."""
    running, waiting = (
        tuple([job if other.request.id == job.request.id else other for other in jobs])
        for jobs in (view.running, view.waiting)
    )
    return replace(view, running=running, waiting=waiting)


def _candidates(view: ReplicaView, best_effort: Sequence[Job]) -> list[Job]:
    """Best-effort requests that may still meet their SLO, as they would be admitted, by deadline."""
    return sorted([promoted(job) for job in best_effort if _can_meet_slo(view, job)], key=deadline_order)


def _can_meet_slo(view: ReplicaView, job: Job) -> bool:
    if job.generated_tokens or not view.now_s <= job.due_s < NO_DEADLINE_S:
        return False
    return view.now_s + view.model.seconds(BatchWork(job.pending_tokens)) <= job.due_s


def _worth(jobs: Sequence[Job]) -> float:
    return sum([job.request.value for job in jobs])


def _cost(job: Job) -> tuple[float, RequestId]:
    """Prompt tokens still to be computed, for its value."""
    return job.pending_tokens / job.request.value, job.request.id
