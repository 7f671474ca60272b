"""Leading blocks that several requests of a forecast hold are counted for one of them at a time.

The blocks of a set of requests are the sum of what each adds to those before it, in any order: its own blocks
without the most that it has in common with one of them. In the order of predicted ends, the last one first,
all those before a request are there as long as it is, so what it adds is its row minus one number.

Candidates may not be in the set, and requests that wait hold nothing yet. Both count only on requests that
are in the set and hold the blocks, and only as long as these do. Two candidates therefore count the same
cached blocks twice once no request holds them any more: they may be evicted before the second one starts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.shared_prefixes import SharedPrefixes, common_with


class _Present(NamedTuple):
    """Requests that are in the set. rows: by id. ends: in how many buckets each row is."""

    rows: Mapping[RequestId, int]
    ends: Ints


def counted_once(
    blocks: Ints, jobs: Sequence[Job], shared: SharedPrefixes, block_tokens: int, present: int | None = None
) -> Ints:
    """Return forecast rows of blocks, one per job, in which blocks that several jobs hold are counted once.

    present: how many of the jobs, the first ones, are certainly there; None: all.
    """
    firm = jobs[:present]
    there = _Present({job.request.id: row for row, job in enumerate(firm)}, (blocks > 0).sum(axis=1))
    saved = np.zeros_like(blocks)
    for row, common in _with_longer(shared, there).items():
        saved[row] = common
    for row, job in enumerate(jobs):
        if job.prefix_of is not None or row >= len(firm):
            saved[row] = _common_with_present(shared, job, _held(job, block_tokens), there, blocks.shape[1])
    left: Ints = np.maximum(blocks - saved, 0)  # an estimated prompt may be shorter than what it shares
    return left


def _held(job: Job, block_tokens: int) -> int:
    """Return how many leading blocks of a job other requests may hold."""
    return job.computed_tokens // block_tokens - (job.unheld_blocks or 0)


def _common_with_present(shared: SharedPrefixes, job: Job, held: int, there: _Present, buckets: int) -> Ints:
    """Return the most that a job has in common with a request that is there, per bucket."""
    most: Ints = np.zeros(buckets, np.int64)
    for request_id, blocks in common_with(shared, job.prefix_of or job.request.id, held).items():
        row = there.rows.get(request_id)
        if row is not None:
            last = int(there.ends[row]) - 1
            most[last] = max(int(most[last]), blocks)
    return np.maximum.accumulate(most[::-1])[::-1]


def _with_longer(shared: SharedPrefixes, there: _Present) -> dict[int, int]:
    """Return the most that each row has in common with one that ends later; if they end together, with a
    later row.
    """
    rows: list[int] = []
    common: list[int] = []
    since: int | None = None  # least since the last request that is there
    for request_id, blocks in zip(shared.ids, shared.common_blocks, strict=True):
        since = blocks if since is None else min(since, blocks)
        if request_id in there.rows:
            common.append(since if rows else 0)
            rows.append(there.rows[request_id])
            since = None
    ends = [(int(there.ends[row]), row) for row in rows]
    before = _with_nearest(ends, common)
    after = _with_nearest(ends[::-1], [0, *common[:0:-1]][: len(rows)])[::-1]
    return {row: max(both) for row, *both in zip(rows, before, after, strict=True)}


def _with_nearest(ends: Sequence[tuple[int, int]], common: Sequence[int]) -> list[int]:
    """Return the blocks in common with the nearest request before each that ends later; 0 if there is none.

    common: with the one just before. It falls with distance, so none that is further away has more.
    """
    found: list[int] = []
    longer: list[tuple[tuple[int, int], int]] = []  # falling ends, and what each has in common with its left
    for end, just_before in zip(ends, common, strict=True):
        least = just_before
        while longer and longer[-1][0] < end:
            least = min(least, longer.pop()[1])
        found.append(least if longer else 0)
        longer.append((end, least))
    return found
