"""Leading blocks of vLLM's KV cache that several requests hold.

A request gets its cached blocks when it starts, and new blocks after that. So the common blocks of two
requests do not change while both run: lists of blocks are compared once, when a request starts. A binary
search finds where two lists differ, because a request that holds a block usually holds all blocks before it;
then the result is verified.

Requests are kept in lexicographic order of their blocks, in which neighbours have the most in common.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from operator import is_
from typing import Any

from penstock_core.domain.request import RequestId
from penstock_core.domain.shared_prefixes import SharedPrefixes


class _Holder:
    """A request by its blocks, which compares with others in lexicographic order."""

    __slots__ = ("blocks", "common", "engine_id")

    def __init__(self, engine_id: str, blocks: Sequence[Any]) -> None:
        self.engine_id, self.blocks = engine_id, blocks
        self.common = 0  # leading blocks held together with the holder before it

    def __lt__(self, other: "_Holder") -> bool:
        at = _parting(self.blocks, other.blocks)
        if at == min(len(self.blocks), len(other.blocks)):
            return len(self.blocks) < len(other.blocks)
        return bool(self.blocks[at].block_id < other.blocks[at].block_id)


class SharedBlocks:
    """The requests that hold blocks, by vLLM's ids."""

    def __init__(self) -> None:
        self._ordered: list[_Holder] = []
        self._by_id: dict[str, _Holder] = {}

    def follow(self, held: Mapping[str, Sequence[Any]]) -> None:
        """Update the requests. held: the blocks of each, the same growing list while the request runs."""
        known = self._by_id
        gone = [engine_id for engine_id, one in known.items() if held.get(engine_id) is not one.blocks]
        for engine_id in gone:
            self._remove(known.pop(engine_id))
        for engine_id in held.keys() - known.keys():
            if held[engine_id]:
                self._insert(_Holder(engine_id, held[engine_id]))

    def prefixes(self, names: Mapping[str, RequestId]) -> SharedPrefixes:
        """Return the common prefixes, by the names of requests."""
        ordered = self._ordered
        common = [*[one.common for one in ordered], 0]
        kept = [at for at in range(len(ordered)) if common[at] or common[at + 1]]
        ids = [ordered[at].engine_id for at in kept]
        return SharedPrefixes([names.get(one, one) for one in ids], [common[at] for at in kept])

    def _insert(self, new: _Holder) -> None:
        ordered = self._ordered
        insort(ordered, new)
        self._by_id[new.engine_id] = new
        at = ordered.index(new)
        if at:
            new.common = _leading_in_common(ordered[at - 1].blocks, new.blocks)
        if at + 1 < len(ordered):
            ordered[at + 1].common = _leading_in_common(new.blocks, ordered[at + 1].blocks)

    def _remove(self, gone: _Holder) -> None:
        ordered = self._ordered
        at = ordered.index(gone)
        if at + 1 < len(ordered):
            ordered[at + 1].common = min(gone.common, ordered[at + 1].common)
        del ordered[at]


def _leading_in_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return how many leading blocks are the same."""
    found = _parting(one, other)
    same = [*map(is_, one[:found], other[:found])]
    return found if all(same) else same.index(False)


def _parting(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return where the blocks of two requests differ. Blocks before it may be copies of equal content."""
    return bisect_left(range(min(len(one), len(other))), True, key=lambda at: one[at] is not other[at])
