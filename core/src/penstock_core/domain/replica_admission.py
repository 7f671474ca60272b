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
class Holds:
    """Most requests that a replica holds until they end: all of them, and best effort among them."""

    carried: int
    best_effort: int


@dataclass(frozen=True, slots=True)
class AdmissionState:
    """State of the replica, beside its view, that decides verdicts."""

    draining: bool
    engine_ready: bool
    carried: int
    best_effort: int


def decide(
    policy: Policy[Any], view: ReplicaView, new: Sequence[Job], standing: AdmissionState, bounds: Holds
) -> list[Verdict]:
    """Return one verdict for each candidate, in order."""
    verdicts: list[Verdict | None] = []
    for job in new:
        refused = refusal(job, standing, bounds)
        if refused is None:
            standing = _with_one_more(standing, job)
        verdicts.append(refused or (BestEffort() if job.best_effort else None))
    asked = [job for job, said in zip(new, verdicts, strict=True) if said is None]
    planned = iter(policy.admit(view, asked) if asked else ())
    return [next(planned) if said is None else said for said in verdicts]


def for_all(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict for a request of several answers: accepted as a whole or not at all."""
    admitted = [said for said in verdicts if isinstance(said, Admitted)]
    if len(admitted) == len(verdicts):
        return Admitted(
            max(said.ttft_predicted_s for said in admitted), max(said.tpot_predicted_s for said in admitted)
        )
    return next((said for said in verdicts if isinstance(said, Rejected)), BestEffort())


def refusal(job: Job, standing: AdmissionState, bounds: Holds) -> Rejected | None:
    """Return why this replica rejects a job whatever the policy decides; None if the policy decides."""
    if standing.draining:
        return Rejected(Reason.DRAINING)
    if not standing.engine_ready:
        return Rejected(Reason.ENGINE_DOWN)
    full = job.best_effort and standing.best_effort >= bounds.best_effort
    if full or standing.carried >= bounds.carried:
        return Rejected(Reason.QUEUE_FULL)
    return None


def _with_one_more(standing: AdmissionState, job: Job) -> AdmissionState:
    best_effort = standing.best_effort + job.best_effort
    return replace(standing, carried=standing.carried + 1, best_effort=best_effort)
