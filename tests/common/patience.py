"""Waiting for a condition, in place of sleeping.

A condition is a function whose result is true once it holds; a wait returns that result. The timeout is
far longer than any normal duration, even on a busy machine: only a failing test waits so long.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = float(os.environ.get("PENSTOCK_PATIENCE_S", "120"))
POLL_INTERVAL_S = 0.005
"""Seconds between two polls of a condition."""

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found | None],
    what: str = "",
    within_s: float = PATIENCE_S,
    interval_s: float = POLL_INTERVAL_S,
) -> Found:
    """Return the condition's first true value; fail, naming it, after `within_s`. interval_s: of polls."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        _check(deadline_s, within_s, what or _name(condition))
        time.sleep(interval_s)
    return found


async def eventually(
    condition: Callable[[], Found | None], what: str = "", within_s: float = PATIENCE_S
) -> Found:
    """Return the condition's first true value while the event loop runs; fail like `until`."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        _check(deadline_s, within_s, what or _name(condition))
        await asyncio.sleep(POLL_INTERVAL_S)
    return found


async def answered(
    condition: Callable[[], Awaitable[Found | None]], what: str = "", within_s: float = PATIENCE_S
) -> Found:
    """Return the first true result of a coroutine function, called again until then; fail like `until`."""
    deadline_s = time.monotonic() + within_s
    while not (found := await condition()):
        _check(deadline_s, within_s, what or _name(condition))
        await asyncio.sleep(POLL_INTERVAL_S)
    return found


def _check(deadline_s: float, within_s: float, what: str) -> None:
    if time.monotonic() > deadline_s:
        raise AssertionError(f"waited {within_s:g} s and never saw: {what}")


def _name(condition: Callable[[], object]) -> str:
    """Return the condition's file and line."""
    code = getattr(condition, "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(condition)
