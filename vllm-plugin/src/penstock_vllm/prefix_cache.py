"""Cached prefixes of requests in vLLM's prefix cache, and pins: blocks that requests hold before they start.

vLLM finds the cached prefix of a prompt when it starts the request. A policy plans before that, so this
module looks it up, without a side effect: a block is cached only if its predecessor is, so a binary search
over the prompt's block hashes finds the end of the cached part, in 8 µs for 32,768 tokens. That holds for
models in which all layers have full attention, in one group, without a connector. For other models no prefix
is looked up.

Cached blocks that no request holds are evicted when other requests need memory. A request that was admitted
because of them holds them (`pin`) from its arrival until vLLM has started it and holds them itself. So does
each request that a plan starts, for that step. A pin is a reference in vLLM's own count, as
`BlockPool.touch` makes it for a running request. All pins are released if vLLM would otherwise preempt a
request, or could start none.
"""

from bisect import bisect_left
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from penstock_core.domain.request import Job, with_cached_prefix
from penstock_core.domain.served_prompts import NONE_CACHED, CachedBlocks, ServedPrompts
from penstock_core.domain.shared_prefixes import SharedPrefixes
from vllm.v1.core.kv_cache_coordinator import UnitaryKVCacheCoordinator
from vllm.v1.core.kv_cache_utils import make_block_hash_with_group_id
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager

from penstock_vllm.engine import EngineRequest, EngineScheduler
from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.reports import CacheReport
from penstock_vllm.shared_blocks import SharedBlocks

LOOKED_UP = 64
"""Most waiting requests that are looked up for a view, in order of arrival: at most half a millisecond. The
others are planned as if their prompts were not cached."""

REPORTED = 16
"""Most waiting requests that are looked up for a report."""

GROUP = 0
"""The only group of layers."""


class CacheLookup:
    """The prefix cache of one engine. resets: number of times that it was emptied."""

    def __init__(self, scheduler: EngineScheduler) -> None:
        self._manager, self._pool = scheduler.kv_cache_manager, scheduler.kv_cache_manager.block_pool
        [self._layers] = scheduler.kv_cache_manager.coordinator.single_type_managers
        self._block_tokens = scheduler.block_size
        self._pins: dict[str, list[Any]] = {}
        self._shared_blocks, self._shared, self._shared_as_of = SharedBlocks(), SharedPrefixes(), (-1, -1)
        self._pin_changes = 0
        self._served = ServedPrompts(self._cached_of, self._block_tokens)
        self.resets = 0

    def with_cached_prefixes(self, waiting: Sequence[HeldRequest]) -> list[Job]:
        """Return the jobs of waiting requests, the first `LOOKED_UP` of them with their cached prefixes."""
        first = [with_cached_prefix(held.job, *self._look_up(held.request)) for held in waiting[:LOOKED_UP]]
        return [*first, *[held.job for held in waiting[LOOKED_UP:]]]

    def shared_prefixes(self, ledger: EngineLedger) -> SharedPrefixes:
        """Return the common prefixes of the ledger's requests, including pinned blocks."""
        as_of = ledger.membership, self._pin_changes
        if as_of != self._shared_as_of:
            self._shared_blocks.follow({**self._layers.req_to_blocks, **self._pins})
            names = {engine_id: held.job.request.id for engine_id, held in ledger.by_id.items()}
            self._shared, self._shared_as_of = self._shared_blocks.prefixes(names), as_of
        return self._shared

    def report(self, ledger: EngineLedger) -> CacheReport:
        """Return the changes, the cached prefixes of waiting requests, and the common prefixes."""
        found = [self._look_up(held.request) for held in ledger.waiting[:REPORTED]]
        return CacheReport(self.resets, self._served.changes(), found, self.shared_prefixes(ledger))

    def pin(self, waiting: Iterable[HeldRequest]) -> None:
        """Let waiting requests hold their cached blocks."""
        for held in waiting:
            request = held.request
            if request.request_id in self._pins:
                continue
            hashes = request.block_hashes
            blocks = [self._block(hashes[at]) for at in range(self._cached_blocks(request))]
            if blocks:
                self._pool.touch(blocks)
                self._pins[request.request_id] = blocks
                self._pin_changes += 1

    def unpin(self, engine_id: str) -> None:
        """Release a request's pinned blocks. It keeps the blocks that vLLM gave it."""
        blocks = self._pins.pop(engine_id, None)
        if blocks is not None:
            self._pin_changes += 1
            self._pool.free_blocks(reversed(blocks))  # the last one is evicted first, as vLLM frees them

    def unpin_all(self) -> None:
        """Release all pins."""
        for engine_id in list(self._pins):
            self.unpin(engine_id)

    def release_if_short(self, running: Iterable[EngineRequest], batch_tokens: int, drafts: int) -> bool:
        """Release all pins if running requests might be preempted for them in the next step.

        batch_tokens: most tokens of a step. drafts: most draft tokens of a request. Returns whether it did.
        """
        if not self._pins:
            return False
        needed = needed_blocks(running, self._block_tokens, batch_tokens, drafts)
        short = needed > int(self._pool.get_num_free_blocks())
        if short:
            self.unpin_all()
        return short

    def release_offered(self, offered: Iterable[HeldRequest], *, can_move: bool) -> None:
        """Release pins for one step, and all pins if no request can progress.

        offered: the requests that the step was to start.
        """
        if not self._pins:
            return
        for held in offered:
            if not held.running and not held.counts_on_cache:
                self.unpin(held.request.request_id)
        if not can_move:
            self.unpin_all()

    def started(self, held: HeldRequest) -> None:
        """Record that vLLM has started a request, which now holds its own blocks."""
        request = held.request
        self.unpin(request.request_id)
        full = request.num_prompt_tokens // self._block_tokens
        self._served.started(
            held.job.request.id,
            request.num_prompt_tokens,
            list(request.block_hashes[:full]),
            self._layers.req_to_blocks.get(request.request_id, ()),
            held.job.computed_tokens // self._block_tokens,
        )

    def ended(self, held: HeldRequest) -> None:
        """Record that a request has ended or was preempted."""
        self.unpin(held.request.request_id)
        self._served.ended(held.job.request.id)

    def emptied(self) -> None:
        """Record that the cache was emptied."""
        self.resets += 1
        self._served = ServedPrompts(self._cached_of, self._block_tokens)

    def _look_up(self, request: EngineRequest) -> tuple[int, int]:
        """Return a waiting request's cached tokens, and how many of their blocks no request holds.

        A request that holds a block holds all blocks before it, unless vLLM computed equal prompts at once.
        """
        blocks, hashes = self._cached_blocks(request), request.block_hashes
        held = bisect_left(range(blocks), True, key=lambda at: self._block(hashes[at]).ref_cnt == 0)
        return blocks * self._block_tokens, blocks - held

    def _cached_blocks(self, request: EngineRequest) -> int:
        """Return the cached blocks that vLLM would find if it started the request now.

        It always computes the last token. A request that was preempted keeps two tokens to compute, as
        policies require, although vLLM may find one block more.
        """
        if not self._manager.prefix_cache_lookup_enabled(request):
            return 0
        tokens = request.num_tokens - 1 - (request.num_output_tokens > 0)
        return self._found(request.block_hashes, tokens // self._block_tokens)

    def _cached_of(self, keys: Sequence[Hashable], own: Sequence[Any] = (), known: int = 0) -> CachedBlocks:
        blocks = self._found(keys, len(keys))
        if not blocks:
            return NONE_CACHED
        while known < min(blocks, len(own)) and self._block(keys[known]) is own[known]:
            known += 1  # each block once, because a block that is held is not evicted
        return CachedBlocks(blocks, self._block(keys[blocks - 1]).ref_cnt > 0, known)

    def _found(self, hashes: Sequence[Hashable], most: int) -> int:
        """Return how many of the first blocks are cached."""
        most = min(most, len(hashes))
        return bisect_left(range(most), True, key=lambda at: self._block(hashes[at]) is None)

    def _block(self, block_hash: Any) -> Any:
        key = make_block_hash_with_group_id(block_hash, GROUP)
        return self._pool.cached_block_hash_to_block.get_one_block(key)


def needed_blocks(running: Iterable[EngineRequest], block_tokens: int, batch_tokens: int, drafts: int) -> int:
    """Return the most blocks that running requests take in a step. drafts: most draft tokens of one."""
    decoding = prefilling = prefills = 0
    for request in running:
        computed = request.num_computed_tokens
        pending = max(request.num_tokens + request.num_output_placeholders - computed, 1) + drafts
        blocks = -(-(computed + pending) // block_tokens) - -(-computed // block_tokens)
        if computed < request.num_prompt_tokens:
            prefilling, prefills = prefilling + blocks, prefills + 1
        else:
            decoding += blocks
    return decoding + min(prefilling, batch_tokens // block_tokens + prefills)


def prefix_cache_of(scheduler: EngineScheduler) -> CacheLookup | None:
    """Return the engine's prefix cache; None if it has none, or one without lookup by binary search."""
    manager = scheduler.kv_cache_manager
    if not manager.enable_caching or scheduler.connector is not None:
        return None
    if type(manager.coordinator) is not UnitaryKVCacheCoordinator:
        return None
    [layers] = manager.coordinator.single_type_managers
    alike = type(layers) is FullAttentionManager and layers.block_size == scheduler.block_size
    return CacheLookup(scheduler) if alike and not layers.use_eagle else None
