"""Waiting for what an operator does in its own time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 60.0
"""Far more than anything takes, so that a slow machine fails no test."""

LOOK_S = 0.05


def eventually(look: Callable[[], T | None], within_s: float = PATIENCE_S) -> T:
    """What `look` gives as soon as it gives anything true. Fails with what it gave last."""
    end_s = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < end_s, f"not within {within_s:.0f} s; last: {found!r}"
        time.sleep(LOOK_S)
    return found
