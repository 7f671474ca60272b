"""**slos-serve.** Admits a request only if its SLO and those of all requests admitted before can be met.

Choose it if late answers are worth little and an early rejection can be used: by another replica, a retry, or
the best-effort tier. An admitted request misses its SLO only if the time model or a predicted length was
wrong.

Costs: it rejects requests, beyond capacity the costly ones first: the fuller memory is, the less a candidate
may need for its value. It plans for the worst case within its predictions, one token per decode and batch
even with speculation, so some of the rejected requests would have been in time. An admission takes a
millisecond. Batches are short (60 ms, or four of the shortest) so that arrivals need not wait, which costs a
few percent of throughput. Best effort gets only surplus, but the oldest always progresses, and requests that
can meet their SLO later are promoted.

Knobs: `aging_s`, wait after which the oldest best-effort request is planned before candidates; a tier's
value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import ReplicaView, with_promoted
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.verdict import BestEffort, Reason, Rejected, Verdict
from penstock_core.policies.slos_serve.admission import decide
from penstock_core.policies.slos_serve.batch_formation import form_batch
from penstock_core.policies.slos_serve.feasibility import Feasible, feasible
from penstock_core.policies.slos_serve.idle_replica import possible_when_idle
from penstock_core.policies.slos_serve.promotion import to_promote
from penstock_core.policies.slos_serve.workload import Workload


@dataclass(frozen=True, slots=True)
class SlosServe:
    """Admission by dynamic programming, batches by deadline [SLOs-Serve]. Stateless."""

    aging_s: float = Knobs().aging_s

    def start(self) -> None:
        """Return no state."""

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        """Admit the most valuable set of new requests with which every deadline is met."""
        verdicts = {job.request.id: _without_a_plan(view, job) for job in new}
        candidates = [job for job in new if verdicts[job.request.id] is None]
        workload = Workload.of(view, self.aging_s)
        admitted = (workload.protecting or workload).admitted
        decided = decide(admitted, sorted(candidates, key=deadline_order))
        return [verdicts[job.request.id] or decided[job.request.id] for job in new]

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        """Promote a best-effort request that can still meet its SLO, and form the next batch."""
        workload = Workload.of(view, self.aging_s)
        promoted = to_promote(workload) if workload.best_effort else None
        if promoted is not None:
            view = with_promoted(view, [promoted])
            workload = Workload.of(view, self.aging_s)
        first = None
        if workload.protecting is not None:
            answer = feasible(workload.protecting.admitted)
            if isinstance(answer, Feasible):
                workload, first = workload.protecting, answer.plan.first
        step = form_batch(workload, first)
        return (step if promoted is None else replace(step, promote=(promoted,))), None


def _without_a_plan(view: ReplicaView, job: Job) -> Verdict | None:
    """Return the verdict on a new request that needs no plan, if there is one."""
    if not possible_when_idle(job, view):
        return Rejected(Reason.NEVER)
    return BestEffort() if job.best_effort else None
