"""The requests of a replica, classified once per decision."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from penstock_core.batch.best_effort import oldest_waiting_too_long
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, deadline_order
from penstock_core.domain.slo import NO_DEADLINE_S
from penstock_core.policies.slos_serve.price import UsualCosts, usual_costs
from penstock_core.policies.slos_serve.speculation import SpeculationLengths, speculation_lengths
from penstock_core.timing.time_model import BatchWork


@dataclass(frozen=True)
class AdmittedSet:
    """Requests of a replica whose SLO must be met. prompts: in order of deadline.

    rejected: number of requests that were rejected with an SLO and are now served best effort.
    """

    view: ReplicaView
    decodes: Sequence[Job] = ()
    prompts: Sequence[Job] = ()
    rejected: int = 0

    @cached_property
    def jobs(self) -> Sequence[Job]:
        """Return all requests, decodes first."""
        return [*self.decodes, *self.prompts]

    @cached_property
    def usual(self) -> UsualCosts:
        """Return their mean costs."""
        return usual_costs(self.jobs)

    @cached_property
    def speculation(self) -> SpeculationLengths:
        """Return the draft tokens with which they generate most tokens a second."""
        return speculation_lengths(self.view.speculation, self.view.model, self.jobs)

    @cached_property
    def step_s(self) -> float:
        """Return the duration of a batch with one token of each request, once all prompts are computed."""
        context = sum([job.request.prompt_tokens + job.generated_tokens for job in self.jobs])
        return self.view.model.seconds(BatchWork(max(len(self.jobs), 1), context))

    def with_requests(self, *more: Job) -> "AdmittedSet":
        """Return the set with these requests added."""
        decodes = [*self.decodes, *[job for job in more if job.decoding]]
        prompts = sorted([*self.prompts, *[job for job in more if not job.decoding]], key=deadline_order)
        return AdmittedSet(self.view, decodes, prompts, self.rejected)


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests of a replica. best_effort: running requests before waiting ones.

    protecting: the workload in which the best-effort request that has waited too long counts as admitted;
        None if there is no such request.
    """

    admitted: AdmittedSet
    best_effort: Sequence[Job]
    protecting: "Workload | None" = None

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
        admitted = AdmittedSet(view, decodes, prompts, rejected)
        oldest = oldest_waiting_too_long(view, aging_s) if best_effort else None
        if oldest is None:
            return Workload(admitted, best_effort)
        others = [job for job in best_effort if job.request.id != oldest.request.id]
        return Workload(admitted, best_effort, Workload(admitted.with_requests(oldest), others))
