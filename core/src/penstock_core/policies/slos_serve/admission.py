"""Decides which new requests to admit: the dynamic program chooses a set, and a batch plan confirms it.

Most decisions need no choice: all candidates fit, or there is a single one and it does not fit. Otherwise
`selection` proposes a set. It models batches as a fluid and ignores the price, so a batch plan checks its
set. While the plan is infeasible, the costlier half of the set is dropped and the rest is checked again. Then
the remaining candidates are tried together with the confirmed set, the cheapest first.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock_core.domain.request import Job, RequestId, deadline_order
from penstock_core.domain.verdict import Admitted, Rejected, Verdict
from penstock_core.policies.slos_serve.earliest_admission import earliest_s
from penstock_core.policies.slos_serve.feasibility import Feasible, Infeasible, feasible
from penstock_core.policies.slos_serve.price import work_left
from penstock_core.policies.slos_serve.selection import propose
from penstock_core.policies.slos_serve.workload import AdmittedSet

MOST_TRIED = 4
"""Most candidates outside the program's set that are tried, each by its own plan. This gains up to 4 points
of attainment in bursts (`bench/results/ablations.md`)."""

Try = Callable[[Sequence[Job]], Feasible | Infeasible]
"""Returns whether these candidates fit together beside the admitted requests."""


class _Refused(NamedTuple):
    """Candidates that are refused because the tried ones, of which they are part, do not fit."""

    jobs: Sequence[Job]
    tried: Sequence[Job]
    answer: Infeasible


class _Choice(NamedTuple):
    """A choice among candidates.

    chosen: candidates that fit together. plan: their plan; None without any. refused: the others.
    """

    chosen: Sequence[Job] = ()
    plan: Feasible | None = None
    refused: Sequence[_Refused] = ()


def decide(admitted: AdmittedSet, candidates: Sequence[Job]) -> dict[RequestId, Verdict]:
    """Return the verdicts on candidates, which are in order of deadline and not best effort."""
    if not candidates:
        return {}

    def fit(tried: Sequence[Job]) -> Feasible | Infeasible:
        return feasible(admitted, tried)

    all_together = fit(candidates)
    if isinstance(all_together, Feasible):
        choice = _Choice(candidates, all_together)
    elif len(candidates) == 1:
        choice = _Choice(refused=[_Refused(candidates, candidates, all_together)])
    else:
        proposed = propose(admitted, candidates)
        choice = _with_others(fit, _confirmed(fit, proposed), candidates, all_together)
    verdicts = _admitted(choice, admitted.view.now_s)
    for jobs, tried, answer in choice.refused:
        rejected = Rejected(answer.reason, earliest_s(admitted, tried, answer))
        verdicts |= {job.request.id: rejected for job in jobs}
    return verdicts


def _confirmed(fit: Try, proposed: list[Job]) -> _Choice:
    """Return the proposed set, halved by dropping the costliest candidates until a plan is feasible."""
    while proposed:
        answer = fit(proposed)
        if isinstance(answer, Feasible):
            return _Choice(proposed, answer)
        proposed = sorted(sorted(proposed, key=work_left)[: len(proposed) // 2], key=deadline_order)
    return _Choice()


def _with_others(
    fit: Try, confirmed: _Choice, candidates: Sequence[Job], all_together: Infeasible
) -> _Choice:
    """Return the confirmed set with the cheapest of the other candidates that fit beside it."""
    chosen, plan, refused = confirmed.chosen, confirmed.plan, []
    left_out = sorted([job for job in candidates if job not in chosen], key=work_left)
    for job in left_out[:MOST_TRIED]:
        tried = [*chosen, job]
        answer = fit(tried)
        if isinstance(answer, Feasible):
            chosen, plan = tried, answer
        else:
            refused.append(_Refused([job], tried, answer))
    refused.append(_Refused(left_out[MOST_TRIED:], candidates, all_together))
    return _Choice(chosen, plan, refused)


def _admitted(choice: _Choice, now_s: float) -> dict[RequestId, Verdict]:
    """Return the verdicts on the chosen candidates."""
    plan = choice.plan
    if plan is None:
        return {}
    return {
        job.request.id: Admitted(
            min(plan.first_token_s[job.request.id], job.due_s) - now_s,
            min(plan.step_s, job.tpot_s or plan.step_s),
            job.unheld_blocks is not None,
        )
        for job in choice.chosen
    }
