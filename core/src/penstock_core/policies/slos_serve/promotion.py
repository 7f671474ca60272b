"""Promotion: before every batch, a best-effort request that can still meet its SLO is admitted.

A request that no replica could admit is served as best effort, and keeps its targets. Load changes within
milliseconds: other requests end sooner than predicted, or are cancelled. FluidServe holds such requests back;
here the client does not wait for its verdict. Promotion adds 1 to 7 points of attainment in every scenario.

The cheapest request is promoted if it fits, one per batch, because a promoted request takes time and memory
from requests that have not arrived yet. The dynamic program considers all requests that can still meet their
SLO. If a set without the cheapest one is more valuable, the cheapest request of that set is promoted instead.

The client was already answered "best effort", so on an engine with slow steps a promoted request needs no
lead (`feasibility`).
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order, promoted
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.policies.slos_serve.feasibility import Feasible, feasible
from penstock_core.policies.slos_serve.selection import propose
from penstock_core.policies.slos_serve.workload import Workload


def to_promote(workload: Workload) -> RequestId | None:
    """Return the best-effort request to promote now, if there is one."""
    admitted = workload.admitted
    candidates = _candidates(admitted.view, workload.best_effort)

    def fits(job: Job) -> bool:
        return isinstance(feasible(admitted, [job], with_lead=False), Feasible)

    cheapest = min(candidates, key=_cost, default=None)
    if cheapest is None or not fits(cheapest):
        return None
    others = [job for job in candidates if job is not cheapest]
    if not others:
        return cheapest.request.id
    with_it, without = [propose(admitted, others, chosen) for chosen in ([cheapest], [])]
    best = min(without, key=_cost, default=cheapest)
    if sum(map(_value, without)) <= sum(map(_value, [cheapest, *with_it])) or not fits(best):
        return cheapest.request.id
    return best.request.id


def _candidates(view: ReplicaView, best_effort: Sequence[Job]) -> list[Job]:
    """Return the best-effort requests that may still meet their SLO, as admitted jobs, by deadline."""
    return sorted([promoted(job) for job in best_effort if _can_meet_slo(view, job)], key=deadline_order)


def _can_meet_slo(view: ReplicaView, job: Job) -> bool:
    if job.generated_tokens or not view.now_s <= job.due_s < NO_DEADLINE_S:
        return False
    return view.now_s + view.model.prefill_seconds(job.pending_tokens, job.computed_tokens) <= job.due_s


def _value(job: Job) -> float:
    return job.request.value


def _cost(job: Job) -> tuple[float, RequestId]:
    """Return the job's prompt tokens still to be computed, divided by its value; then its id."""
    return job.pending_tokens / job.request.value, job.request.id
