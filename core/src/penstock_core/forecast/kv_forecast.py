"""Forecast of the KV cache that a set of requests will hold, up to its future peak [SOLA, §3.4; LightLLM].

Requests end at different times, so a set of them fits although the sum of their own peaks does not. Every
decode grows by one token a step and frees all its blocks at its end. The sum over all requests is therefore
largest at one of the ends.

Time is counted in steps. A request with `left` tokens to come holds `size + s` tokens in step s, for s <
left. A request whose prefill still waits may start up to `delay` steps later. It is counted as if it
started at once and then stayed `delay` steps at its full size, which is an upper bound for every start
between.

The forecast has one row per request and one column per bucket of steps: the most blocks that the request
holds within that bucket. The usage of a set is the sum of its rows, so adding a request adds a row. With one
bucket for every end the forecast is exact. With more than `MOST_BUCKETS` ends, neighbouring ends share a
bucket and the forecast is an upper bound. `shared_rows` subtracts blocks that several requests hold together.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Ints
from penstock_core.domain.replica_view import KvCache
from penstock_core.domain.request import Job
from penstock_core.forecast.job_columns import columns
from penstock_core.forecast.shared_rows import counted_once

MOST_BUCKETS = 64
"""Exact for the requests that most replicas can hold, and few enough to add rows in microseconds."""

UNKNOWN_DELAY_STEPS = 1 << 40
"""Delay of a request whose start is unknown: it is counted at its full size for the whole forecast."""


class KvForecast(NamedTuple):
    """Blocks over time.

    blocks: most blocks of each request (rows) within each bucket of steps (columns).
    ends: the last step of each bucket; at least one bucket.
    """

    blocks: Ints
    ends: Ints

    @property
    def usage(self) -> Ints:
        """Return the blocks of all requests together, per bucket."""
        total: Ints = self.blocks.sum(axis=0)
        return total

    @property
    def peak_blocks(self) -> int:
        """Return the most blocks that all requests hold together at any step."""
        return int(self.usage.max())


def forecast(
    jobs: Sequence[Job],
    kv: KvCache,
    size_tokens: Ints,
    left: Ints,
    delay_steps: Ints | None = None,
    *,
    present: int | None = None,
) -> KvForecast:
    """Forecast jobs that hold `size_tokens` now and have `left` tokens (at least one) to come, each.

    If `kv` has the common prefixes of jobs, blocks that several jobs hold are counted once.

    delay_steps: how much later each may start; None: all start now.
    present: how many of the jobs, the first ones, are certainly in the set; None: all.
    """
    last = left - 1
    until = last if delay_steps is None else last + delay_steps
    ends = _ends_of_buckets(until)
    starts = np.concatenate(([0], ends[:-1] + 1))
    blocks = np.minimum(ends[None, :], last[:, None])
    blocks += (size_tokens + (kv.block_tokens - 1))[:, None]
    blocks //= kv.block_tokens
    blocks *= until[:, None] >= starts[None, :]
    if kv.shared_prefixes is not None:
        blocks = counted_once(blocks, jobs, kv.shared_prefixes, kv.block_tokens, present)
    return KvForecast(blocks, ends)


def forecast_jobs(jobs: Sequence[Job], kv: KvCache, present: int | None = None) -> KvForecast:
    """Forecast jobs that all decode from now on until their predicted ends. present: see `forecast`."""
    of = columns(jobs)
    return forecast(jobs, kv, of.size_tokens, of.output_tokens_left, present=present)


def first_fit(kv: KvCache, running: Sequence[Job], candidates: Sequence[Job]) -> list[bool]:
    """Return whether each candidate fits beside all that run and the candidates before it that fit.

    A request whose predicted peak exceeds the whole cache counts as all of it: it may end before that.
    """
    if not candidates:
        return []
    jobs, count, capacity_tokens = [*running, *candidates], len(running), kv.total_blocks * kv.block_tokens
    of = columns(jobs)
    size = of.size_tokens
    left = np.minimum(of.output_tokens_left, np.maximum(capacity_tokens - size + 1, 1))
    if (-(-(size + left - 1) // kv.block_tokens)).sum() <= kv.total_blocks:
        return [True] * len(candidates)  # all peaks fit at once, so their forecast need not be computed
    rows = forecast(jobs, kv, size, left, present=count).blocks
    held, fits = rows[:count].sum(axis=0), []
    for row in rows[count:]:
        fits.append(bool((held + row).max() <= kv.total_blocks))
        held = held + row if fits[-1] else held
    return fits


def _ends_of_buckets(until_steps: Ints) -> Ints:
    """Return the last step of every bucket, for requests that end after these steps."""
    ends = np.sort(until_steps) if len(until_steps) else np.zeros(1, np.int64)
    ends = ends[np.concatenate((ends[1:] != ends[:-1], [True]))]
    if len(ends) <= MOST_BUCKETS:
        return ends
    evenly = np.arange(MOST_BUCKETS) * ((len(ends) - 1) / (MOST_BUCKETS - 1))
    return ends[evenly.round().astype(np.int64)]
