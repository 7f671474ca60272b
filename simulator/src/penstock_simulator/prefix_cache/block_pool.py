"""The KV blocks of an engine: which are free, in which order they are reused, and what they contain.

As vLLM's `BlockPool`. A block that no request holds is free, whether it is cached or not, and is taken from
the front of one queue. A block that was given a key stays cached when it is released, until it is taken for
other content. Released blocks with a key go to the end of the queue, so the least recently used one is
evicted first; blocks without a key go to its front, because no request can use them. A hit takes a free
block out of the queue.

Several blocks may have the same key, if requests computed the same content side by side. Each of them is
evicted on its own, and a hit uses the one that was stored first.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from penstock_simulator.prefix_cache.block_keys import BlockKey

Block = int
"""Number of a block, from 0."""


class OutOfBlocks(Exception):
    """More blocks are requested than are free, which the caller must check before."""


class BlockPool:
    """All blocks of an engine.

    evictions: blocks that were evicted. changes: grows whenever the result of a look-up may change.
    sharing_changes: grows whenever a block gets a second holder or loses one of several.
    """

    def __init__(self, total_blocks: int) -> None:
        self._free: OrderedDict[Block, None] = OrderedDict.fromkeys(range(total_blocks))  # next to take first
        self._holders = [0] * total_blocks
        self._key_of: list[BlockKey | None] = [None] * total_blocks
        self._cached: dict[BlockKey, Block] = {}
        self._copies: dict[BlockKey, list[Block]] = {}  # further blocks with a cached key, oldest first
        self.evictions = self.changes = self.sharing_changes = 0

    @property
    def free_blocks(self) -> int:
        """Blocks that no request holds; cached ones among them are free until they are taken."""
        return len(self._free)

    @property
    def free_order(self) -> list[Block]:
        """Free blocks, the next to be taken first."""
        return list(self._free)

    @property
    def cached_keys(self) -> frozenset[BlockKey]:
        """Keys of all cached blocks."""
        return frozenset(self._cached)

    def find(self, keys: Sequence[BlockKey]) -> list[Block]:
        """Return the cached blocks of the longest cached prefix of `keys`. Changes nothing."""
        blocks = map(self._cached.get, keys)
        return list(iter(blocks.__next__, None))  # up to the first that is not cached

    def free_among(self, blocks: Iterable[Block]) -> int:
        """Return how many of these blocks no request holds."""
        return list(map(self._holders.__getitem__, blocks)).count(0)

    def shared_among(self, blocks: Iterable[Block]) -> int:
        """Return how many of these blocks several requests hold."""
        return sum([self._holders[block] > 1 for block in blocks])

    def hold(self, blocks: Iterable[Block]) -> None:
        """Let one more request hold these cached blocks."""
        self.changes += 1
        for block in blocks:
            if self._holders[block]:
                self.sharing_changes += 1
            else:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[Block]:
        """Return `count` free blocks, held once and evicted from the cache. Raises OutOfBlocks."""
        if count > len(self._free):
            raise OutOfBlocks(f"{count} blocks are wanted, {len(self._free)} are free")
        if not count:
            return []
        self.changes += 1
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._evict(block)
            self._holders[block] = 1
        return taken

    def store(self, block: Block, key: BlockKey) -> None:
        """Cache a held block that has no key yet: its content is complete."""
        self.changes += 1
        self._key_of[block] = key
        if self._cached.setdefault(key, block) != block:
            self._copies.setdefault(key, []).append(block)

    def release(self, blocks: Sequence[Block]) -> None:
        """Let a request release its blocks, which are in the order of its tokens.

        The last one is evicted first, because all before it are of use without it.
        """
        self.changes += 1
        unknown = []
        for block in reversed(blocks):
            self._holders[block] -= 1
            if self._holders[block]:
                self.sharing_changes += 1
                continue
            if self._key_of[block] is None:
                unknown.append(block)
            else:
                self._free[block] = None
        for block in reversed(unknown):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Empty the cache if no request holds a block, as vLLM does. Returns whether it was emptied."""
        if len(self._free) < len(self._holders):
            return False
        self.changes += 1
        self._cached.clear()
        self._copies.clear()
        self._key_of = [None] * len(self._key_of)
        return True

    def _evict(self, block: Block) -> None:
        """Remove a block from the cache."""
        key = self._key_of[block]
        if key is None:
            return
        self._key_of[block] = None
        self.evictions += 1
        copies = self._copies.get(key)
        if copies is None:
            del self._cached[key]
            return
        if self._cached[key] == block:
            self._cached[key] = copies.pop(0)
        else:
            copies.remove(block)
        if not copies:
            del self._copies[key]
