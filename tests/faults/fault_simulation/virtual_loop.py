"""An event loop in virtual time: while everything waits, the clock jumps to the next timer.

Nothing comes from outside: no sockets, no threads, no signals. So a run depends on its program and its seed
alone. Connections go through a simulated network (`network`), which is set once it exists.
"""

import asyncio
import selectors
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fault_simulation.hosts import HOST

if TYPE_CHECKING:
    from fault_simulation.network import Network

MOST_TURNS = 200_000
"""Turns of the loop in one run. A run that takes more does not come to its end."""


class Stuck(Exception):
    """The program waits for what will never happen, or never waits."""


class _NoFiles(selectors.SelectSelector):
    """A selector that never waits: it moves the clock to the next timer."""

    now_s = 0.0
    turns = 0

    def select(self, timeout: float | None = None) -> list[Any]:
        self.turns += 1
        if timeout is None:
            raise Stuck("everything waits, and no timer is set")
        if self.turns > MOST_TURNS:
            raise Stuck(f"{MOST_TURNS} turns of the loop")
        self.now_s += max(0.0, timeout)
        return []


class _Ready(deque[asyncio.Handle]):
    """What runs in the next turn. What belongs to a stopped host is parked there."""

    def append(self, handle: asyncio.Handle) -> None:
        host = handle._context.get(HOST)  # type: ignore[attr-defined]
        if host is not None and host.stopped:
            host.parked.append(handle)
        else:
            super().append(handle)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop that begins at zero. turns: how often it has gone round."""

    network: "Network"

    def __init__(self) -> None:
        self._no_files = _NoFiles()
        super().__init__(self._no_files)
        self._ready = _Ready()

    @property
    def turns(self) -> int:
        """How often it has gone round."""
        return self._no_files.turns

    def time(self) -> float:
        """Return virtual seconds."""
        return self._no_files.now_s

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> Any:
        """Call it in the next turn, because there are no other threads."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> Any:
        """Run it now, and return its result as a future."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> Any:
        """Return the one address that a simulated host has: its name."""
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (host, port))]

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect through the simulated network. Raises OSError."""
        return await self.network.connect(protocol_factory, f"{host}:{port}")

    async def create_unix_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], path: str, **_: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Connect through the simulated network. Raises OSError."""
        return await self.network.connect(protocol_factory, path)
