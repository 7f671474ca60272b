"""Admission of policies that reject no request: predictions for each candidate, without an SLO check."""

from collections.abc import Sequence

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Admitted, BestEffort, Verdict
from penstock_core.forecast.prefill_queue import full_batches
from penstock_core.timing.time_model import BatchWork


def admit_all(view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
    """Return verdicts with the predicted end of the queue before each candidate, first come first served."""
    queue = [job for job in (*view.running, *view.waiting) if not job.decoding]
    decodes = [job for job in view.running if job.decoding]
    verdicts: list[Verdict] = []
    for job in new:
        queue.append(job)
        if job.best_effort:
            verdicts.append(BestEffort())
            continue
        context = sum(other.computed_tokens + 1 for other in decodes)
        tpot_s = view.model.seconds(BatchWork(len(decodes) + len(queue), context))
        verdicts.append(Admitted(_first_token_s(view, queue, len(decodes), context), tpot_s))
    return verdicts


def _first_token_s(view: ReplicaView, queue: Sequence[Job], decodes: int, context_tokens: int) -> float:
    """Return the seconds until the last of the queue is computed."""
    waited_s = max(view.busy_until_s - view.now_s, 0.0)
    return waited_s + full_batches(view, queue, decodes, context_tokens).seconds
