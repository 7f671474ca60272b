"""Waiting for a cluster and its operator, with the timeout of all tests."""

from collections.abc import Callable
from typing import TypeVar

from patience import until

POLL_INTERVAL_S = 0.05
"""Seconds between two polls, each of which requests the API server."""

Found = TypeVar("Found")


def eventually(condition: Callable[[], Found | None]) -> Found:
    """Return the condition's first true value; fail with its file and line."""
    return until(condition, interval_s=POLL_INTERVAL_S)
