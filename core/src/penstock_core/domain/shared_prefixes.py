"""Which requests hold the same leading KV blocks, so that a forecast counts those once.

Requests are in lexicographic order of their blocks. Then neighbours have the most leading blocks in common,
and what any two have in common is the least that two neighbours between them have. So one number for each
request describes all their common prefixes.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from penstock_core.domain.request import RequestId


class SharedPrefixes(NamedTuple):
    """The requests that hold leading blocks which others hold too.

    ids: neighbours have the most in common. common_blocks: leading blocks that each holds together with the
        one before it; 0 for the first.
    """

    ids: Sequence[RequestId] = ()
    common_blocks: Sequence[int] = ()


def shared_prefixes(held: Mapping[RequestId, Sequence[int]]) -> SharedPrefixes:
    """Return the common prefixes of requests that hold these blocks, each in the order of its tokens."""
    ordered = sorted([(list(blocks), request_id) for request_id, blocks in held.items() if blocks])
    common = [0, *[leading_in_common(before, blocks) for (before, _), (blocks, _) in pairwise(ordered)], 0]
    kept = [at for at in range(len(ordered)) if common[at] or common[at + 1]]
    return SharedPrefixes([ordered[at][1] for at in kept], [common[at] for at in kept])


def leading_in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many leading blocks are the same, by a binary search that compares each block once or so."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def shared_blocks(shared: SharedPrefixes) -> dict[RequestId, int]:
    """Return how many leading blocks each request holds together with any other."""
    after = [*shared.common_blocks[1:], 0]
    return dict(zip(shared.ids, map(max, shared.common_blocks, after), strict=True))


def common_with(shared: SharedPrefixes, request_id: RequestId, most: int) -> dict[RequestId, int]:
    """Return the leading blocks that each request has in common with this one, at most `most`; itself too."""
    common = {request_id: most}
    if request_id not in shared.ids:
        return common
    at = shared.ids.index(request_id)
    common |= _falling(most, zip(shared.ids[at + 1 :], shared.common_blocks[at + 1 :], strict=True))
    before = zip(reversed(shared.ids[:at]), reversed(shared.common_blocks[1 : at + 1]), strict=True)
    return common | _falling(most, before)


def _falling(most: int, neighbours: Iterable[tuple[RequestId, int]]) -> dict[RequestId, int]:
    """Return what is left in common with each of these neighbours, from near to far, until nothing is."""
    left: dict[RequestId, int] = {}
    for request_id, common in neighbours:
        most = min(most, common)
        if not most:
            break
        left[request_id] = most
    return left
