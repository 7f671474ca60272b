"""Windows of tokens over which TPOT is judged.

TPOT is judged over the whole answer (`mean`), over windows of ten tokens (`window`), or over every single gap
(`max`). All three are windows of some length: 0 for the whole answer, 10, and 1. A lead over the target at
the end of a window is not carried into the next one.

These functions use plain arithmetic, so that compiled code can call them.
"""

from typing import TypeVar

Tokens = TypeVar("Tokens", int, float)

WINDOW_TOKENS = 10
"""Tokens in a window, for tiers judged by windows [SLOs-Serve, App. D]."""


def closed_tokens(window: int, since: Tokens) -> Tokens:
    """Return how many of `since` tokens after a window's start belong to windows that have ended."""
    return since // window * window if window else 0


def tokens_until_judged(window: int, since: Tokens, left: Tokens) -> Tokens:
    """Return how many more tokens are judged together with the `since` tokens after the window's start.

    left: tokens that the answer still has.
    """
    return min(window - since, left) if window else left
