"""Counts leading blocks that several requests of a forecast hold for one of these requests at a time.

The blocks of a set of requests are the sum over the requests, in any order, of the blocks that each adds to
those before it: its own blocks minus the most that it has in common with one of them. In descending order of
predicted ends, all requests before one run at least as long as it does, so one number is subtracted from all
buckets of its row.

Candidates may not be in the set, and requests that wait hold no blocks yet. Both share only blocks of
requests that are in the set and hold them, and only while these do. Two candidates therefore count the same
cached blocks twice once no request holds them: they may be evicted before the second candidate starts.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.request import Job, RequestId
from penstock_core.domain.shared_prefixes import SharedPrefixes, common_with


class _Members(NamedTuple):
    """Requests that are certainly in the set. rows: row by id. ends: number of buckets of each row."""

    rows: Mapping[RequestId, int]
    ends: Ints


def counted_once(
    blocks: Ints, jobs: Sequence[Job], shared: SharedPrefixes, block_tokens: int, present: int | None = None
) -> Ints:
    """Return forecast rows of blocks, one per job, in which blocks that several jobs hold are counted once.

    present: how many of the jobs, the first ones, are certainly in the set; None: all.
    """
    certain = jobs[:present]
    members = _Members({job.request.id: row for row, job in enumerate(certain)}, (blocks > 0).sum(axis=1))
    saved = np.zeros_like(blocks)
    for row, common in _with_longer(shared, members).items():
        saved[row] = common
    for row, job in enumerate(jobs):
        if job.prefix_of is not None or row >= len(certain):
            saved[row] = _common_with_present(shared, job, _held(job, block_tokens), members, blocks.shape[1])
    left: Ints = np.maximum(blocks - saved, 0)  # an estimated prompt may be shorter than its shared prefix
    return left


def _held(job: Job, block_tokens: int) -> int:
    """Return how many leading blocks of a job other requests may hold."""
    return job.computed_tokens // block_tokens - (job.unheld_blocks or 0)


def _common_with_present(
    shared: SharedPrefixes, job: Job, held: int, members: _Members, buckets: int
) -> Ints:
    """Return the most blocks, per bucket, that a job has in common with a request in the set."""
    most: Ints = np.zeros(buckets, np.int64)
    for request_id, blocks in common_with(shared, job.prefix_of or job.request.id, held).items():
        row = members.rows.get(request_id)
        if row is not None:
            last = int(members.ends[row]) - 1
            most[last] = max(int(most[last]), blocks)
    return np.maximum.accumulate(most[::-1])[::-1]


def _with_longer(shared: SharedPrefixes, members: _Members) -> dict[int, int]:
    """Return for each row the most blocks that it has in common with a row that ends later.

    Of rows that end together, the later row counts as ending later.
    """
    rows: list[int] = []
    common: list[int] = []
    since: int | None = None  # fewest common blocks since the last member
    for request_id, blocks in zip(shared.ids, shared.common_blocks, strict=True):
        since = blocks if since is None else min(since, blocks)
        if request_id in members.rows:
            common.append(since if rows else 0)
            rows.append(members.rows[request_id])
            since = None
    ends = [(int(members.ends[row]), row) for row in rows]
    before = _with_nearest(ends, common)
    after = _with_nearest(ends[::-1], [0, *common[:0:-1]][: len(rows)])[::-1]
    return {row: max(both) for row, *both in zip(rows, before, after, strict=True)}


def _with_nearest(ends: Sequence[tuple[int, int]], common: Sequence[int]) -> list[int]:
    """Return the blocks in common with the nearest request before each that ends later; 0 if there is none.

    common: blocks in common with the request just before. Requests further away do not have more.
    """
    found: list[int] = []
    # Ends in descending order, with the blocks in common with the one before.
    longer: list[tuple[tuple[int, int], int]] = []
    for end, just_before in zip(ends, common, strict=True):
        least = just_before
        while longer and longer[-1][0] < end:
            least = min(least, longer.pop()[1])
        found.append(least if longer else 0)
        longer.append((end, least))
    return found
