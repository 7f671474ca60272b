"""Longest duration of a batch in which no token is due.

A batch in progress cannot be interrupted, so an arriving request may wait for its whole duration. Longer
batches waste less time on their fixed cost. So the bound grows with the shortest batch of the engine, which
consists almost only of the fixed cost, and with the duration of the decodes: twice that leaves half for
prefill.

Beside an answer whose single gaps are judged, every batch is a gap, so batches with fewer tokens are tried
first (`smooth_batch_tokens`).

Plain arithmetic, so that compiled code can call `longest_batch_s`.
"""

from penstock_core.timing.time_model import ONE_TOKEN, TimeModel

ORDINARY_BATCH_S = 0.060
"""Duration that is allowed, unless it is too short or too long compared with the shortest batch."""

SHORTEST_BATCHES = 4.0
"""A batch may last this many of the shortest batches: its fixed cost is then a quarter."""

MOST_SHORTEST_BATCHES = 8.0
"""A batch need not last longer than this many of the shortest batches: its fixed cost is then an eighth.

This bound applies to engines whose shortest batch takes less than 7.5 ms. No built-in model is that fast. On
such engines it makes streams beside long prompts as smooth as the best fixed token budget (ADR 0046)."""

SMOOTH_BATCHES = 3.0
"""A batch beside an answer whose single gaps are judged has as many tokens as fit into this many of the
shortest batches: its fixed cost is then a third, attention aside."""

DECODE_STRETCH = 2.0
"""Largest duration of a batch with prefill, as a multiple of its decodes alone."""


def ordinary_batch_s(shortest_s: float) -> float:
    """Return the longest duration of a batch for which arrivals and other streams' next tokens wait.

    shortest_s: duration of a batch of one token.
    """
    return max(min(ORDINARY_BATCH_S, MOST_SHORTEST_BATCHES * shortest_s), SHORTEST_BATCHES * shortest_s)


def longest_batch_s(ordinary_s: float, decodes_s: float) -> float:
    """Return the longest duration of a batch whose decodes take `decodes_s` alone."""
    return max(ordinary_s, DECODE_STRETCH * decodes_s)


def smooth_batch_tokens(model: TimeModel) -> int:
    """Return the most tokens of a batch beside an answer whose single gaps are judged.

    Attention aside they take as long as three of the shortest batches. Attention is left out because a prompt
    with a long context needs it for a single token too, and because a time model that was measured with whole
    prompts hardly knows that of a chunk.
    """
    return model.tokens_within(SMOOTH_BATCHES * model.seconds(ONE_TOKEN))
