"""Waiting for what a cluster and its operator do in their own time, with the patience of all tests."""

from collections.abc import Callable
from typing import TypeVar

from patience import until

POLL_INTERVAL_S = 0.05
"""Between two looks: each asks the API server."""

Found = TypeVar("Found")


def eventually(condition: Callable[[], Found | None]) -> Found:
    """Return the first true value of `look`; fail with its file and line."""
    return until(condition, interval_s=POLL_INTERVAL_S)
