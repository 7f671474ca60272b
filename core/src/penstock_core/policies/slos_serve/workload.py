"""The requests of a replica, classified once per decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock_core.batch.best_effort import oldest_waiting_too_long
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.policies.slos_serve.price import UsualCosts, usual_costs


@dataclass(frozen=True)
class AdmittedSet:
    """Requests whose SLO must be met. prompts: by deadline.

    rejected: requests beside them that asked for an SLO and are served best effort.
    """

    decodes: Sequence[Job] = ()
    prompts: Sequence[Job] = ()
    rejected: int = 0

    @cached_property
    def usual(self) -> UsualCosts:
        """What they cost on average."""
        return usual_costs([*self.decodes, *self.prompts])


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests of a replica. best_effort: running ones in front.

    protected: the one of them that has waited too long, if there is one.
    """

    admitted: AdmittedSet
    best_effort: Sequence[Job]
    protected: Job | None

    @staticmethod
    def of(view: ReplicaView, aging_s: float) -> "Workload":
        """Return the requests of a replica."""
        decodes: list[Job] = []
        prompts: list[Job] = []
        best_effort: list[Job] = []
        for job in (*view.running, *view.waiting):
            (best_effort if job.best_effort else decodes if job.decoding else prompts).append(job)
        prompts.sort(key=deadline_order)
        rejected = sum([job.due_s < NO_DEADLINE_S for job in best_effort])
        protected = oldest_waiting_too_long(view, aging_s) if best_effort else None
        return Workload(AdmittedSet(decodes, prompts, rejected), best_effort, protected)

    def protecting(self) -> "Workload":
        """Return the workload with the protected request, which there is, among the admitted ones."""
        job = self.protected
        assert job is not None
        decodes, prompts = [*self.admitted.decodes], [*self.admitted.prompts]
        (decodes if job.decoding else prompts).append(job)
        prompts.sort(key=deadline_order)
        others = [other for other in self.best_effort if other.request.id != job.request.id]
        return Workload(AdmittedSet(decodes, prompts, self.admitted.rejected), others, job)
