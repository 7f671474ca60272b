"""The KV blocks of an engine's requests, with or without a prefix cache.

Without one, blocks are a number: a request takes free ones as it grows, and gives all back. With one, blocks
may be shared and stay cached after their request (`cached_kv`), and a waiting request may be pinned: it holds
its cached prefix until its prefill begins.
"""

from collections.abc import Iterable, Sequence
from itertools import chain

from penstock_core.domain.replica_view import KvCache
from penstock_core.domain.request import Job, RequestId

from penstock_simulator.engine.cached_kv import CachedKv
from penstock_simulator.engine.iteration import ActiveRequest, Grant, Iteration
from penstock_simulator.engine.preemption import growth_blocks, missing_blocks
from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.prefix_cache.prefix_cache import RequestBlocks


class KvBlocks:
    """The blocks of one engine.

    free: blocks that no request holds. cached: the prefix cache; None without one.
    """

    def __init__(self, total: int, block_tokens: int, *, prefix_caching: bool) -> None:
        self.total = self.free = total
        self.block_tokens = block_tokens
        self.cached = CachedKv(total, block_tokens) if prefix_caching else None
        self._empty = KvCache(total, total, block_tokens)
        self._pinned: dict[RequestId, ActiveRequest] = {}

    def view(self, running: Iterable[ActiveRequest], waiting: Iterable[ActiveRequest]) -> KvCache:
        """Return the KV cache, of which these requests hold parts, as policies see it."""
        if self.cached is None:
            return KvCache(self.total, self.free, self.block_tokens)
        shared = self.cached.sharing(chain(running, waiting))
        return KvCache(self.total, self.free, self.block_tokens, *shared)

    def blocks_of(self, job: Job, keys: Sequence[BlockKey]) -> RequestBlocks | None:
        """Return the empty block list of a request whose prompt has these keys; None without a cache."""
        return None if self.cached is None else self.cached.blocks_of(job, keys)

    def needs_block(self, computed_tokens: int, blocks: int) -> bool:
        """Return whether a decode needs a block, or completes one that is to be cached."""
        size = self.block_tokens
        return computed_tokens == blocks * size or (
            self.cached is not None and (computed_tokens + 1) % size == 0
        )

    def grow(self, entry: ActiveRequest, kv_tokens: int) -> None:
        """Give a request blocks for `kv_tokens` entries."""
        if self.cached is not None:
            self.cached.grow(entry, kv_tokens)
            self.free = self.cached.free_blocks
            return
        blocks = growth_blocks(entry, kv_tokens, self._empty)
        self.free -= blocks
        entry.blocks += blocks

    def grow_decodes(self, growing: Sequence[tuple[ActiveRequest, int]]) -> None:
        """Give each decode a block for its next entry. Without a cache, the caller sets `entry.blocks`."""
        if self.cached is None:
            self.free -= len(growing)
            return
        for entry, kv_tokens in growing:
            self.cached.grow_decode(entry, kv_tokens)
        self.free = self.cached.free_blocks

    def release(self, entry: ActiveRequest) -> None:
        """Take all blocks from a request."""
        if self.cached is None:
            self.free += entry.blocks
        else:
            self.cached.release(entry)
            self.free = self.cached.free_blocks
            self._pinned.pop(entry.job.request.id, None)
        entry.blocks = 0

    def started(self, entry: ActiveRequest) -> int:
        """Record that a request's prefill begins. Returns its cached tokens."""
        if self.cached is None:
            return 0
        self._pinned.pop(entry.job.request.id, None)
        return self.cached.started(entry)

    def pin(self, entry: ActiveRequest) -> None:
        """Let a waiting request hold its cached prefix until its prefill begins."""
        if self.cached is not None:
            self.cached.pin(entry)
            self.free = self.cached.free_blocks
            if entry.job.unheld_blocks is not None:
                self._pinned[entry.job.request.id] = entry

    def hold_cached(self, grants: Iterable[Grant]) -> None:
        """Pin the cached prefixes of requests that may start in the next iteration.

        Each stays pinned until `started` or `release_unstarted`.
        """
        if self.cached is not None:
            for entry in self._not_pinned(grants):
                self.cached.pin(entry)
            self.free = self.cached.free_blocks

    def release_unstarted(self, wanted: Iteration, iteration: Iteration) -> None:
        """Undo `hold_cached` for requests in `wanted` that do not start in `iteration`."""
        if self.cached is not None:
            starting = _ids(iteration)
            left_out = [grant for grant in wanted.grants if grant.entry.job.request.id not in starting]
            for entry in self._not_pinned(left_out):
                self.cached.unpin(entry)
            self.free = self.cached.free_blocks

    def unpin_if_short(self, wanted: Iteration, kv: KvCache, *, idle: bool) -> bool:
        """Unpin waiting requests if other requests need their blocks. Returns whether any were unpinned.

        idle: whether the engine has nothing to compute, so that the first waiting request needs the blocks.
        """
        if self.cached is None or not self._pinned or not (idle or missing_blocks(wanted, kv) > 0):
            return False
        starting = _ids(wanted)
        for job_id in [job_id for job_id in self._pinned if job_id not in starting]:
            self.cached.unpin(self._pinned.pop(job_id))
        self.free = self.cached.free_blocks
        return True

    def _not_pinned(self, grants: Iterable[Grant]) -> list[ActiveRequest]:
        """Return the requests among these that have cached blocks and were not pinned by `pin`."""
        entries = [grant.entry for grant in grants]
        return [
            entry
            for entry in entries
            if entry.job.unheld_blocks is not None and entry.job.request.id not in self._pinned
        ]


def _ids(iteration: Iteration) -> set[RequestId]:
    return {grant.entry.job.request.id for grant in iteration.grants}
