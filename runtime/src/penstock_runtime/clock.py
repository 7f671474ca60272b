"""The clock of a process: seconds of the machine's monotonic clock, unless the context has another one.

A simulation runs several hosts in one process and in virtual time. Each host's tasks and timers run in a
context of their own (`contextvars`), so that each reads its host's clock. Two readings are comparable only
within one host, as in production.

The event loop's own clock is too coarse: uvloop's counts whole milliseconds and stands still within one turn.
"""

import time
from collections.abc import Callable
from contextvars import ContextVar

CLOCK: ContextVar[Callable[[], float]] = ContextVar("penstock_clock", default=time.monotonic)
"""Function that reads the clock, in seconds from an arbitrary start."""


def monotonic() -> float:
    """Return the time now, in seconds. It never goes back."""
    return CLOCK.get()()
