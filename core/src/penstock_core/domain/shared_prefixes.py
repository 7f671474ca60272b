"""Leading KV blocks that several requests hold, so that a forecast counts these blocks once.

Requests are in lexicographic order of their blocks. Then neighbours have the most leading blocks in common,
and any two requests have as many in common as the neighbours between them that have the fewest. So one number
for each request describes all their common prefixes.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock_core.domain.request import RequestId


class SharedPrefixes(NamedTuple):
    """Requests that hold leading blocks which other requests hold too.

    ids: in lexicographic order of their blocks. common_blocks: leading blocks that each request has in common
        with the one before it; 0 for the first.
    """

    ids: Sequence[RequestId] = ()
    common_blocks: Sequence[int] = ()


def shared_prefixes(held: Mapping[RequestId, Sequence[int]]) -> SharedPrefixes:
    """Return the common prefixes of requests that hold these blocks. held: blocks in the order of tokens."""
    ordered = sorted([(list(blocks), request_id) for request_id, blocks in held.items() if blocks])
    common = [0, *[leading_in_common(before, blocks) for (before, _), (blocks, _) in pairwise(ordered)], 0]
    kept = [at for at in range(len(ordered)) if common[at] or common[at + 1]]
    return SharedPrefixes([ordered[at][1] for at in kept], [common[at] for at in kept])


def leading_in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading blocks are the same, by a binary search."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_blocks(shared: SharedPrefixes) -> dict[RequestId, int]:
    """Return for each request the most leading blocks that it has in common with another."""
    after = [*shared.common_blocks[1:], 0]
    return dict(zip(shared.ids, map(max, shared.common_blocks, after), strict=True))


def common_with(shared: SharedPrefixes, request_id: RequestId, most: int) -> dict[RequestId, int]:
    """Return the leading blocks, at most `most`, that each request has in common with this one."""
    common = {request_id: most}
    if request_id not in shared.ids:
        return common
    at = shared.ids.index(request_id)
    common |= _falling(most, zip(shared.ids[at + 1 :], shared.common_blocks[at + 1 :], strict=True))
    before = zip(reversed(shared.ids[:at]), reversed(shared.common_blocks[1 : at + 1]), strict=True)
    return common | _falling(most, before)


def _falling(most: int, neighbours: Iterable[tuple[RequestId, int]]) -> dict[RequestId, int]:
    """Return the blocks in common with each neighbour, from near to far, while there are any."""
    left: dict[RequestId, int] = {}
    for request_id, common in neighbours:
        most = min(most, common)
        if not most:
            break
        left[request_id] = most
    return left
