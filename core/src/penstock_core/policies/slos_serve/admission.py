"""Which new requests a replica admits: the set that the dynamic program chooses, confirmed by a batch plan.

Most decisions are easy: all candidates fit, or there is one and it does not. Otherwise `choose` proposes a
set. It sees batches as a fluid and knows no price, so a plan confirms its set, without the costliest half
as often as it takes; then those left out are tried beside it, the cheapest first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Admitted, Rejected, Verdict
from penstock_core.policies.slos_serve.choose import propose
from penstock_core.policies.slos_serve.feasibility import AdmittedSet, Feasible, Infeasible, feasible
from penstock_core.policies.slos_serve.price import work_left

MOST_TRIED = 4
"""Candidates tried by plans of their own, of those that the program left out."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided. plan: of everything admitted, with `jobs`; None where no candidate is."""

    jobs: Sequence[Job] = ()
    plan: Feasible | None = None
    refused: dict[RequestId, Infeasible] = field(default_factory=dict)

    def verdict(self, job: Job, now_s: float) -> Verdict:
        """Return the verdict on a candidate."""
        refused = self.refused.get(job.request.id)
        if refused is not None:
            return Rejected(refused.reason, refused.earliest_s)
        assert self.plan is not None, "what is not refused is admitted"
        ttft_s = min(self.plan.first_token_s[job.request.id], job.due_s) - now_s
        return Admitted(ttft_s, min(self.plan.step_s, job.pace_s or self.plan.step_s))


def choose_feasible(view: ReplicaView, admitted: AdmittedSet, candidates: Sequence[Job]) -> Choice:
    """Return the candidates (by deadline, none best effort) to admit beside the admitted requests."""
    everyone = feasible(view, admitted, candidates)
    if isinstance(everyone, Feasible):
        return Choice(candidates, everyone)
    if len(candidates) == 1:
        return Choice(refused={candidates[0].request.id: everyone})
    chosen, plan = _confirmed(view, admitted, propose(view, admitted.jobs, candidates))
    refused: dict[RequestId, Infeasible] = {}
    left_out = [job for job in candidates if job not in chosen]
    for tried, job in enumerate(sorted(left_out, key=work_left)):
        answer = feasible(view, admitted, [*chosen, job]) if tried < MOST_TRIED else everyone
        if isinstance(answer, Feasible):
            chosen, plan = [*chosen, job], answer
        else:
            refused[job.request.id] = answer
    return Choice(chosen, plan, refused)


def _confirmed(
    view: ReplicaView, admitted: AdmittedSet, proposed: list[Job]
) -> tuple[list[Job], Feasible | None]:
    """The proposed set without the costliest half, as often as it takes until a plan is feasible."""
    while proposed:
        answer = feasible(view, admitted, proposed)
        if isinstance(answer, Feasible):
            return proposed, answer
        proposed = sorted(sorted(proposed, key=work_left)[: len(proposed) // 2], key=deadline_order)
    return [], None
