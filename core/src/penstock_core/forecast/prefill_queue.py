"""Duration of prompts that an engine computes one after the other, in full batches beside its decodes.

This models engines that schedule by themselves: first come first served, each iteration filled with prompt
tokens up to its token budget, beside one token of each decode.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.time_model import BatchWork, chunk_work


class Batches(NamedTuple):
    """A number of iterations, and their total duration."""

    iterations: int
    seconds: float


def full_batches(view: ReplicaView, queue: Sequence[Job], decodes: int, context_tokens: int) -> Batches:
    """Return the iterations until the queue is computed, beside decodes with this much context."""
    tokens = sum(job.pending_tokens for job in queue)
    if not tokens:
        return Batches(0, 0.0)
    attention = sum(chunk_work(job.pending_tokens, job.computed_tokens) for job in queue)
    a_batch = max(view.limits.batch_tokens - decodes, 1)
    full, rest = divmod(tokens, a_batch)

    def batch_s(size: int) -> float:
        return view.model.seconds(BatchWork(decodes + size, context_tokens, attention * size / tokens))

    seconds = full * batch_s(a_batch) + (batch_s(rest) if rest else 0.0)
    return Batches(full + (rest > 0), seconds)
