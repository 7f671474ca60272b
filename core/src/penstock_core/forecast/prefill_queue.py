"""How long prompts take that an engine computes one after the other, in full batches beside its decodes.

So works every engine that is left to itself: first come first served, as many tokens of prompts in each
iteration as it may have beside one of every decode.
"""

from collections.abc import Sequence
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.time_model import BatchWork, chunk_work


class Batches(NamedTuple):
    """So many iterations, and what they take together."""

    iterations: int
    seconds: float


def full_batches(view: ReplicaView, queue: Sequence[Job], decodes: int, context_tokens: int) -> Batches:
    """The iterations until the last of the queue is computed, beside decodes with so much context."""
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
