"""Longest duration of a batch in which no token is due.

A batch in progress cannot be interrupted, so an arriving request may wait for all of it. Longer batches waste
less time on their fixed cost, so the bound grows with the duration of the decodes: twice that leaves half for
prefill.

Plain arithmetic, so that compiled code can call it.
"""

ORDINARY_BATCH_S = 0.060
"""Duration that is always allowed."""

DECODE_STRETCH = 2.0
"""Largest duration of a batch with prefill, as a multiple of its decodes alone."""


def longest_batch_s(ordinary_s: float, decodes_s: float) -> float:
    """Return the longest duration of a batch whose decodes take `decodes_s` alone."""
    return max(ordinary_s, DECODE_STRETCH * decodes_s)
