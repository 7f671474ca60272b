"""Decides which new requests to admit: the dynamic program chooses a set, and a batch plan confirms it.

Most decisions need no choice: all candidates fit, or there is one and it does not. Otherwise `choose`
proposes a set. It models batches as a fluid and ignores the price, so its set is checked by a batch plan,
repeatedly without its costliest half until one is feasible. Then the remaining candidates are tried beside
it, the cheapest first.
"""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Admitted, Rejected, Verdict
from penstock_core.policies.slos_serve.choose import propose
from penstock_core.policies.slos_serve.feasibility import Feasible, Infeasible, feasible
from penstock_core.policies.slos_serve.price import work_left
from penstock_core.policies.slos_serve.workload import AdmittedSet

MOST_TRIED = 4
"""Candidates tried by plans of their own, of those that the program left out: worth up to 4 points of
attainment in bursts (`bench/results/ablations.md`)."""


def decide(view: ReplicaView, admitted: AdmittedSet, candidates: Sequence[Job]) -> dict[RequestId, Verdict]:
    """Return the verdicts on candidates (by deadline, none best effort) beside the admitted requests."""
    if not candidates:
        return {}
    all_together = feasible(view, admitted, candidates)
    if isinstance(all_together, Feasible):
        return _admitted(view, candidates, all_together)
    if len(candidates) == 1:
        return {candidates[0].request.id: _rejected(all_together)}
    chosen, plan = _confirmed(view, admitted, propose(view, admitted, candidates))
    verdicts: dict[RequestId, Verdict] = {}
    left_out = [job for job in candidates if job not in chosen]
    for tried, job in enumerate(sorted(left_out, key=work_left)):
        answer = feasible(view, admitted, [*chosen, job]) if tried < MOST_TRIED else all_together
        if isinstance(answer, Feasible):
            chosen, plan = [*chosen, job], answer
        else:
            verdicts[job.request.id] = _rejected(answer)
    return verdicts | _admitted(view, chosen, plan) if plan else verdicts


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


def _admitted(view: ReplicaView, chosen: Sequence[Job], plan: Feasible) -> dict[RequestId, Verdict]:
    """The verdicts on candidates of this plan."""
    return {
        job.request.id: Admitted(
            min(plan.first_token_s[job.request.id], job.due_s) - view.now_s,
            min(plan.step_s, job.tpot_s or plan.step_s),
            job.unheld_blocks is not None,
        )
        for job in chosen
    }


def _rejected(answer: Infeasible) -> Rejected:
    return Rejected(answer.reason, answer.earliest_s)
