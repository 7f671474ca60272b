"""Waiting on conditions: tests never sleep and hope."""

import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE_S = 30.0
"""Far longer than anything here takes; only a broken build waits so long."""

Found = TypeVar("Found")


def until(look: Callable[[], Found | None], what: str, timeout_s: float = PATIENCE_S) -> Found:
    """The first true value that `look` returns; fails, saying `what` never came, where none does."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > deadline_s:
            raise AssertionError(f"waited {timeout_s:g} s and never saw: {what}")
        time.sleep(0.02)
