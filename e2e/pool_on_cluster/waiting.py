"""Waits for a condition, with a time limit."""

from collections.abc import Callable
from time import monotonic, sleep
from typing import TypeVar

Value = TypeVar("Value")

PATIENCE_S = 180
"""Long enough for pods to start on two busy cores."""


class Impatient(AssertionError):
    """What was waited for did not come."""


def until(
    condition: Callable[[], Value | None], what: str, patience_s: float = PATIENCE_S, every_s: float = 0.2
) -> Value:
    """What the condition gives once it gives anything true. Raises Impatient, naming what was waited for."""
    end_s = monotonic() + patience_s
    while True:
        if value := condition():
            return value
        if monotonic() > end_s:
            raise Impatient(f"not within {patience_s:g} s: {what}")
        sleep(every_s)
