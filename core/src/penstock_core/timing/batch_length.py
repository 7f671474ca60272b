"""Longest duration of a batch in which no token is due.

A batch in progress cannot be interrupted, so an arriving request may wait for all of it. Longer batches waste
less time on their fixed cost. So the bound grows with the shortest batch of the engine, in which the fixed
cost is almost everything, and with the duration of the decodes: twice that leaves half for prefill.

Plain arithmetic, so that compiled code can call it.
"""

ORDINARY_BATCH_S = 0.060
"""Duration that is allowed, unless it is too short or too long beside the shortest batch."""

SHORTEST_BATCHES = 4.0
"""A batch may last so many of the shortest: its fixed cost is then a quarter."""

MOST_SHORTEST_BATCHES = 8.0
"""A batch need not last longer than so many of the shortest, of which its fixed cost is an eighth then.

It concerns engines whose shortest batch takes less than 7.5 ms, which is that of no built-in model. There it
makes streams beside long prompts as smooth as the best fixed token budget (ADR 0046)."""

DECODE_STRETCH = 2.0
"""Largest duration of a batch with prefill, as a multiple of its decodes alone."""


def ordinary_batch_s(shortest_s: float) -> float:
    """Return how long a batch may be that arrivals and other streams' next tokens wait for.

    shortest_s: duration of a batch of one token.
    """
    return max(min(ORDINARY_BATCH_S, MOST_SHORTEST_BATCHES * shortest_s), SHORTEST_BATCHES * shortest_s)


def longest_batch_s(ordinary_s: float, decodes_s: float) -> float:
    """Return the longest duration of a batch whose decodes take `decodes_s` alone."""
    return max(ordinary_s, DECODE_STRETCH * decodes_s)
