"""Waits for a condition, with a time limit."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

Value = TypeVar("Value")

TIMEOUT_S = 180
"""Enough for pods to start on two busy cores."""


class WaitTimeout(AssertionError):
    """A condition did not become true in time."""


def until(
    condition: Callable[[], Value | None], what: str, timeout_s: float = TIMEOUT_S, interval_s: float = 0.2
) -> Value:
    """Return the condition's value once it is true. Raises WaitTimeout, with the description `what`."""
    end_s = monotonic() + timeout_s
    while True:
        if value := condition():
            return value
        if monotonic() > end_s:
            raise WaitTimeout(f"not within {timeout_s:g} s: {what}")
        sleep(interval_s)
