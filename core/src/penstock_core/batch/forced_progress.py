"""The last resort of schedulers that could find nothing to do: the oldest request gets what it needs.

Bounds on memory and time can add up to a step in which nobody may move, though requests are there: prompts
that fill the KV cache half done, a target that no batch can keep. Time would pass and nothing change. Then
the request that was started first goes on, and whoever started last gives way for it; where none runs, the
first that waits starts.
"""

from penstock_core.batch.open_batch import OpenBatch


def let_oldest_move(batch: OpenBatch) -> None:
    """Put one request into an empty batch, where there is one that the engine can hold."""
    if batch.tokens:
        return
    running, kv = batch.view.running, batch.view.kv
    for job in (*running, *batch.view.waiting):
        tokens = min(job.pending_tokens, batch.left_tokens)
        fits = kv.blocks_for(job.computed_tokens + tokens) <= kv.total_blocks
        if fits and job.request.id not in batch.preempted:
            others = (other for other in reversed(running) if other is not job)
            batch.make_room(batch.blocks_wanted(job, tokens), int(job.computed_tokens == 0), others)
            batch.add(job, tokens)
            return
