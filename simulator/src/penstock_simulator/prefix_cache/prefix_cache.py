"""The blocks of each request, and the cached prefix of a request that starts.

As vLLM's `KVCacheManager` for a model with full attention. A request that starts takes the longest cached
prefix of its full blocks, but computes at least its last token: if all of its tokens are cached, the last
block is computed again. Blocks are cached when the iteration that completes them begins, so two equal prompts
in one iteration share blocks.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from penstock_simulator.prefix_cache.block_keys import BlockKey
from penstock_simulator.prefix_cache.block_pool import Block, BlockPool


class CachedPrefix(NamedTuple):
    """The cached prefix of a request.

    tokens: number of cached tokens. free_blocks: cached blocks that no request holds.
    holder: name of a request that holds all other cached blocks, if there is one.
    """

    tokens: int
    free_blocks: int
    holder: Hashable | None = None


@dataclass(slots=True, eq=False)
class RequestBlocks:
    """The KV blocks of one request.

    name: unique among requests; names the content of blocks beyond `keys`, which no other request can hit.
    keys: keys of its first full blocks.
    blocks: blocks that it holds, in the order of its tokens. stored: number of them that have been stored.
    looked_up: its last look-up, and the tokens and the state of the pool that this was for.
    """

    name: Hashable
    keys: Sequence[BlockKey] = ()
    blocks: list[Block] = field(default_factory=list)
    stored: int = 0
    looked_up: tuple[tuple[int, int], CachedPrefix] | None = None

    def keys_between(self, begin: int, end: int) -> list[BlockKey]:
        """Return the keys of its blocks from index `begin` to before `end`."""
        own = [(self.name, index) for index in range(max(begin, len(self.keys)), end)]
        return [*self.keys[begin:end], *own]


class PrefixCache:
    """The KV memory of an engine with prefix caching."""

    def __init__(self, total_blocks: int, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.pool = BlockPool(total_blocks)
        self._holders: dict[Block, RequestBlocks] = {}  # the last request that took each block

    def lookup(self, request: RequestBlocks, tokens: int) -> CachedPrefix:
        """Return the cached prefix of a request of `tokens` tokens that holds no blocks. Changes no block."""
        as_of = (tokens, self.pool.changes)
        if request.looked_up is None or request.looked_up[0] != as_of:
            request.looked_up = as_of, self._lookup(request, tokens)
        return request.looked_up[1]

    def cached_tokens(self, keys: Sequence[BlockKey], tokens: int) -> int:
        """Return the cached tokens of a prompt of this length with these keys. Changes nothing."""
        return len(self.pool.find(keys[: (tokens - 1) // self.block_tokens])) * self.block_tokens

    def start(self, request: RequestBlocks, tokens: int) -> int:
        """Let a request of `tokens` tokens hold its cached prefix. Returns the cached tokens."""
        request.blocks = self._find(request, tokens)
        request.stored = len(request.blocks)
        self.pool.hold(request.blocks)
        self._holders |= dict.fromkeys(request.blocks, request)
        return request.stored * self.block_tokens

    def grow(self, request: RequestBlocks, kv_tokens: int, known_tokens: int) -> list[Block]:
        """Give a request blocks for `kv_tokens` entries, and cache its full blocks. Returns the new blocks.

        known_tokens: tokens that are certainly its own, which draft tokens are not.
        Raises OutOfBlocks without any change.
        """
        new = self.pool.take(max(-(-kv_tokens // self.block_tokens) - len(request.blocks), 0))
        request.blocks += new
        self._holders |= dict.fromkeys(new, request)
        full = min(kv_tokens, known_tokens) // self.block_tokens
        for block, key in zip(
            request.blocks[request.stored : full], request.keys_between(request.stored, full), strict=True
        ):
            self.pool.store(block, key)
        request.stored = max(request.stored, full)
        return new

    def release(self, request: RequestBlocks) -> None:
        """Take all blocks from a request. They stay cached until they are taken by others."""
        self.pool.release(request.blocks)
        request.blocks, request.stored = [], 0

    def _lookup(self, request: RequestBlocks, tokens: int) -> CachedPrefix:
        found = self._find(request, tokens)
        free = self.pool.free_among(found)
        return CachedPrefix(len(found) * self.block_tokens, free, self._holder(found[: len(found) - free]))

    def _holder(self, blocks: list[Block]) -> Hashable | None:
        """Return the name of a request that begins with these blocks, if the last one to take them does."""
        holder = self._holders.get(blocks[-1]) if blocks else None
        return holder.name if holder is not None and holder.blocks[: len(blocks)] == blocks else None

    def _find(self, request: RequestBlocks, tokens: int) -> list[Block]:
        return self.pool.find(request.keys_between(0, (tokens - 1) // self.block_tokens))
