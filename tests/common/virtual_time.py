"""An event loop in virtual time: where everything waits for a timer, the clock jumps to it."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jumping(selectors.SelectSelector):
    """A selector that never waits: it moves the clock instead."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("everything waits, and nothing is going to happen")
        self.now_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Begins at zero; equal programs have equal runs."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s


def run(program: Coroutine[Any, Any, T]) -> T:
    """Run a program in virtual time; its background tasks end with it."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(program)


def now_s() -> float:
    """The running loop's time."""
    return asyncio.get_running_loop().time()
