"""Simulated hosts: the tasks, connections and clock of one process.

Tasks, timers and callbacks of a host run in its context (`contextvars`), which they inherit from what
starts them. So a host's tasks are known without its code taking part, and `kill` ends all of them as kill
-9 does: its connections are reset first, so that nothing that its tasks do while they end is seen by
anybody. A host that is stopped, as by SIGSTOP, runs nothing: what becomes due waits for `go_on`.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import Context, ContextVar, copy_context
from itertools import count
from typing import Any, Protocol

from penstock_runtime.clock import CLOCK

HOST: ContextVar["Host | None"] = ContextVar("host", default=None)
"""The host whose code is running."""

ENDING_TURNS = 200
"""Turns of the loop within which the tasks of a killed host have ended."""

CANCEL_EACH_TURNS = 20
"""Turns between two cancellations of them: one in each turn would interrupt tasks that close connections."""


class Severable(Protocol):
    """A connection of a host."""

    def sever(self, *, silent: bool = False) -> None:
        """Break it for both ends. silent: the peer of a host that is gone finds out late."""


class Host:
    """One process. clock_offset_s: how far its clock is ahead of the loop's.

    stopped: how many faults have stopped it. parked: what it will run once it goes on, the oldest first.
    """

    def __init__(self, name: str, clock_offset_s: float = 0.0) -> None:
        self.name, self.alive = name, True
        self.clock_offset_s = clock_offset_s
        self.stopped, self.parked = 0, deque[asyncio.Handle]()
        self.tasks: dict[asyncio.Task[Any], None] = {}  # in order, as sets of objects are not
        self.connections: dict[Severable, None] = {}
        self.context: Context = copy_context()
        loop = asyncio.get_running_loop()
        self.context.run(CLOCK.set, lambda: loop.time() + self.clock_offset_s)
        self.context.run(HOST.set, self)

    def spawn(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a task of this host."""
        return asyncio.get_running_loop().create_task(coroutine, context=self.context.copy())

    def stop(self) -> None:
        """Stop all code of the host until `go_on`."""
        self.stopped += 1

    def go_on(self) -> None:
        """Run all code that has become due meanwhile, and continue."""
        self.stopped = max(self.stopped - 1, 0)
        if not self.stopped:
            parked, self.parked = self.parked, deque()
            asyncio.get_running_loop()._ready.extend(parked)  # type: ignore[attr-defined]

    async def kill(self, *, silent: bool = False) -> None:
        """End it immediately. silent: its peers notice late, as after the loss of a node."""
        self.alive = False
        if self.stopped:
            self.stopped = 1
            self.go_on()
        for connection in list(self.connections):
            connection.sever(silent=silent)
        for turn in range(ENDING_TURNS):
            for task in list(self.tasks) if turn % CANCEL_EACH_TURNS == 0 else ():
                task.cancel()
            if not self.tasks:
                return
            await asyncio.sleep(0)


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is its number, so that sets of tasks have the same order in each run of a seed."""

    def __init__(
        self, coroutine: Any, loop: asyncio.AbstractEventLoop, context: Context | None, number: int
    ) -> None:
        self._number = number
        super().__init__(coroutine, loop=loop, context=context)

    def __hash__(self) -> int:
        return self._number


def follow_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Register every task at the host whose code starts it."""
    numbers = count()

    def start(loop: asyncio.AbstractEventLoop, coroutine: Any, context: Context | None = None) -> Any:
        task = NumberedTask(coroutine, loop, context, next(numbers))
        host = HOST.get() if context is None else context.get(HOST)
        if host is not None:
            host.tasks[task] = None
            task.add_done_callback(lambda ended: host.tasks.pop(ended, None))
        return task

    loop.set_task_factory(start)
