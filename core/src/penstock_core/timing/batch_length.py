"""How long a batch may last although no token in it is due: as long as an arrival may have to wait for it.

A batch that has begun cannot be interrupted, so its duration is what an arrival waits. Longer batches waste
less on their fixed cost, so the bound grows with what decodes take: twice that leaves half to prefill.

Plain arithmetic, so that compiled code calls it too.
"""

ORDINARY_BATCH_S = 0.060
"""A batch this long is never too long."""

DECODE_STRETCH = 2.0
"""A batch with prefill in it may last so many times what its decodes take alone."""


def longest_batch_s(ordinary_s: float, decodes_s: float) -> float:
    """Return the longest duration of a batch whose decodes take `decodes_s` alone."""
    return max(ordinary_s, DECODE_STRETCH * decodes_s)
