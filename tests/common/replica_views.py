"""Replica views for tests of policies: running requests hold the KV blocks of their computed tokens."""

from collections.abc import Sequence

from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import TimeModel


def kv_cache(running: Sequence[Job], free_blocks: int, block_tokens: int = 16) -> KvCache:
    """Return a KV cache with the blocks of running requests and `free_blocks` more."""
    held = sum(-(-job.computed_tokens // block_tokens) for job in running)
    return KvCache(held + free_blocks, free_blocks, block_tokens)


def replica_view(
    running: Sequence[Job],
    waiting: Sequence[Job],
    *,
    model: TimeModel,
    now_s: float,
    free_blocks: int = 1000,
    limits: Limits | None = None,
    speculation: Speculation | None = None,
) -> ReplicaView:
    """Return the view of a replica whose engine is free now."""
    kv = kv_cache(running, free_blocks)
    return ReplicaView(
        now_s, now_s, tuple(running), tuple(waiting), kv, limits or Limits(), model, speculation
    )
