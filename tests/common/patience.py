"""Waiting for a condition: tests never sleep and hope.

A condition may be anything that is true once it holds; what it returned is what a wait returns. The bound is
far longer than anything takes, even on a busy machine: only a broken build waits so long.
"""

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

PATIENCE_S = float(os.environ.get("PENSTOCK_PATIENCE_S", "120"))
POLL_INTERVAL_S = 0.005
"""Between two looks."""

Found = TypeVar("Found")


def until(
    condition: Callable[[], Found | None],
    what: str = "",
    within_s: float = PATIENCE_S,
    interval_s: float = POLL_INTERVAL_S,
) -> Found:
    """Return the first true value of `look`; fail, naming what never came true. again_s: between looks."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        _check(deadline_s, within_s, what or _name(condition))
        time.sleep(interval_s)
    return found


async def eventually(
    condition: Callable[[], Found | None], what: str = "", within_s: float = PATIENCE_S
) -> Found:
    """The same in a coroutine, while the loop runs."""
    deadline_s = time.monotonic() + within_s
    while not (found := condition()):
        _check(deadline_s, within_s, what or _name(condition))
        await asyncio.sleep(POLL_INTERVAL_S)
    return found


async def answered(
    condition: Callable[[], Awaitable[Found | None]], what: str = "", within_s: float = PATIENCE_S
) -> Found:
    """The same of something that is asked for, and answers."""
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
