"""The future peak of the KV cache [SOLA, §3.4; LightLLM].

Requests end at different times, so a set of them fits although the sum of their own peaks does not. Every
decode grows by one token a step and frees everything at its end: the sum of all is largest at one of the
ends.

Time is counted in steps. A request that will bring out `left` more tokens holds `now + s` tokens in step
s, for s < left. One whose prefill still waits may start up to `delay` steps later; it is counted as if it
had started at once and as if it stayed `delay` steps at its full size, which bounds every start between.

The usage of a set is the sum of its requests' rows, so one row is one request's claim, and a set is
tested by adding. A row has one number for each bucket of steps: the request's most blocks within it. With
a bucket for every end the test is exact; past `MOST_BUCKETS` ends, neighbours share a bucket and it is an
upper bound.
"""

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

MOST_BUCKETS = 64
"""Enough to be exact for the requests that most replicas can hold, few enough to add rows in microseconds."""

FOREVER_STEPS = 1 << 40
"""The delay of a request that nobody knows the start of."""


def ends_of_buckets(until_steps: Ints) -> Ints:
    """Last step of every bucket, for requests that end after these steps. At least one bucket."""
    ends = np.sort(until_steps) if len(until_steps) else np.zeros(1, np.int64)
    ends = ends[np.concatenate((ends[1:] != ends[:-1], [True]))]
    if len(ends) <= MOST_BUCKETS:
        return ends
    evenly = np.arange(MOST_BUCKETS) * ((len(ends) - 1) / (MOST_BUCKETS - 1))
    return ends[evenly.round().astype(np.int64)]


def usage(tokens_now: Ints, left: Ints, delay_steps: Ints, ends: Ints, block_tokens: int) -> Ints:
    """Blocks that each request holds at most in each bucket: one row a request."""
    last = left - 1
    starts = np.concatenate(([0], ends[:-1] + 1))
    blocks = np.minimum(ends[None, :], last[:, None])
    blocks += (tokens_now + (block_tokens - 1))[:, None]
    blocks //= block_tokens
    blocks *= (last + delay_steps)[:, None] >= starts[None, :]
    return blocks
