"""Guarantees progress: the oldest request runs if a scheduler leaves a batch empty.

Bounds on memory and time can leave a step empty although there are requests: half-computed prompts fill the
KV cache, or no batch can meet a target. The next step would be empty too. Then the request that was started
first continues, and requests started last are preempted for it. If none runs, the first waiting request
starts.
"""

from penstock_core.batch.open_batch import OpenBatch


def force_oldest_progress(batch: OpenBatch) -> None:
    """Add one request to an empty batch, if there is one that the engine can hold."""
    if batch.tokens:
        return
    running, kv = batch.view.running, batch.view.kv
    for job in (*running, *batch.view.waiting):
        tokens = min(job.pending_tokens, batch.left_tokens)
        fits = kv.blocks_for(job.computed_tokens + tokens) <= kv.total_blocks
        if fits and job.request.id not in batch.preempted:
            others = (other for other in reversed(running) if other is not job)
            if batch.make_room(batch.blocks_wanted(job, tokens), int(not job.holds_kv), others):
                batch.add(job, tokens)
                return
