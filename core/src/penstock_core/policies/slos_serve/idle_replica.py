"""Check against an idle replica. If even that cannot meet a request's SLO, no replica of the pool can.

Admission's margin does not count: it widens while admitted requests miss their SLOs under load. Nor do blocks
that requests of other clients hold.
"""

from dataclasses import replace

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.forecast.prefill_queue import full_batches
from penstock_core.timing.admission_margin import without_margin
from penstock_core.timing.time_model import BatchWork


def possible_when_idle(job: Job, view: ReplicaView) -> bool:
    """Return whether an idle replica could meet this job's SLO, or hold its KV if it is best effort."""
    kv, model = view.kv, without_margin(view.model)
    size_tokens = job.request.prompt_tokens + job.generated_tokens
    if job.best_effort:
        return kv.blocks_for(size_tokens + 1) <= kv.idle_blocks
    peak_tokens = size_tokens + job.output_tokens_left - 1
    if kv.blocks_for(peak_tokens) > kv.idle_blocks:
        return False
    if job.tpot_s is not None and model.seconds(BatchWork(1, peak_tokens)) > job.tpot_s:
        return False
    idle = view if model is view.model else replace(view, model=model)
    return full_batches(idle, [job], 0, 0).seconds <= job.due_s - job.request.arrival_s
