"""Verdicts for candidates that arrived together: first the replica's own rejections, then the policy's.

Pure. A replica that drains or has lost its engine rejects all, and full queues reject all. Best effort needs
no plan, only space in its queue. The policy decides the rest together.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from penstock_core.domain.policy import Policy
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Admitted, BestEffort, Reason, Rejected, Verdict

DECIDED_TOGETHER = 32
"""Most candidates per call of the policy, whose time grows faster than their number; 32 take milliseconds.
The rest is decided right after.
"""


MOST_SEQUENCES = DECIDED_TOGETHER
"""Most answers of one request, over its prompts and its `n` or `best_of`. Each is a separate job, and they
are admitted in one call of the policy, all or none.
"""


@dataclass(frozen=True, slots=True)
class InFlightLimits:
    """Bounds on the requests of a replica that have not ended.

    requests: all of them. best_effort: those without an SLO.
    """

    requests: int
    best_effort: int


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """State of the replica, beside its view, on which verdicts depend.

    requests, best_effort: present numbers of the requests that `InFlightLimits` bounds.
    """

    draining: bool
    engine_ready: bool
    requests: int
    best_effort: int


def decide(
    policy: Policy[Any], view: ReplicaView, new: Sequence[Job], state: AdmissionState, bounds: InFlightLimits
) -> list[Verdict]:
    """Return one verdict for each candidate, in order."""
    verdicts: list[Verdict | None] = []
    for job in new:
        refused = refusal(job, state, bounds)
        if refused is None:
            state = _with_one_more(state, job)
        verdicts.append(refused or (BestEffort() if job.best_effort else None))
    asked = [job for job, verdict in zip(new, verdicts, strict=True) if verdict is None]
    planned = iter(policy.admit(view, asked) if asked else ())
    return [next(planned) if verdict is None else verdict for verdict in verdicts]


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict for a request with several answers: it is accepted as a whole, or rejected."""
    admitted = [verdict for verdict in verdicts if isinstance(verdict, Admitted)]
    if len(admitted) == len(verdicts):
        return Admitted(
            max(verdict.ttft_predicted_s for verdict in admitted),
            max(verdict.tpot_predicted_s for verdict in admitted),
            any(verdict.counts_on_cache for verdict in admitted),
        )
    return next((verdict for verdict in verdicts if isinstance(verdict, Rejected)), BestEffort())


def refusal(job: Job, state: AdmissionState, bounds: InFlightLimits) -> Rejected | None:
    """Return why this replica rejects a job whatever the policy decides; None if the policy decides."""
    if state.draining:
        return Rejected(Reason.DRAINING)
    if not state.engine_ready:
        return Rejected(Reason.ENGINE_DOWN)
    full = job.best_effort and state.best_effort >= bounds.best_effort
    if full or state.requests >= bounds.requests:
        return Rejected(Reason.QUEUE_FULL)
    return None


def _with_one_more(state: AdmissionState, job: Job) -> AdmissionState:
    best_effort = state.best_effort + job.best_effort
    return replace(state, requests=state.requests + 1, best_effort=best_effort)
