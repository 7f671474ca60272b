"""The timers of one connection, each running at most once."""

import asyncio
from collections.abc import Callable
from typing import Literal

Timer = Literal["head", "idle", "linger", "write", "half closed", "last call"]


class ConnectionTimers:
    """Calls functions later, unless their timers are stopped first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._handles: dict[Timer, asyncio.TimerHandle] = {}

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._handles

    def start(self, timer: Timer, after_s: float, then: Callable[[], None]) -> None:
        """Start a timer that is not running."""
        if timer not in self._handles:
            self._handles[timer] = self._loop.call_later(after_s, self._fire, timer, then)

    def stop(self, timer: Timer) -> bool:
        """Stop a timer. Returns whether it was running."""
        handle = self._handles.pop(timer, None)
        if handle is None:
            return False
        handle.cancel()
        return True

    def stop_all(self) -> None:
        """Stop every timer."""
        for handle in self._handles.values():
            handle.cancel()
        self._handles.clear()

    def _fire(self, timer: Timer, then: Callable[[], None]) -> None:
        self._handles.pop(timer, None)
        then()
