"""Serving of a Penstock process: listen, report readiness, stop.

    def main() -> int:
        return run_process(lambda stop: serve_router(options, stop))

    async def serve_router(options, stop):
        listener = listen(options.host, options.port)
        async with serving(app, listener, drain_s=30) as server:
            log.info("ready", address=address_of(listener))
            await stop.wait()
            server.close_after_responses()

SIGTERM and SIGINT set `stop`. Leaving `serving` closes the listener, answers requests that have arrived, lets
open responses end for up to `drain_s`, ends the rest with an error event, and returns. A second signal ends
the process immediately.
"""

import asyncio
import contextlib
import errno
import gc
import ipaddress
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import uvloop

from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_connection.protocol import HttpProtocol
from penstock_runtime.http_connection.server_state import ServerState
from penstock_runtime.http_request import App
from penstock_runtime.tls_server import TlsServer

BACKLOG = 2048
"""Most connections that are not yet accepted; the kernel allows at most net.core.somaxconn."""

FINAL_WRITE_S = 1.0
"""Seconds for responses that were cut off at the end of a drain to send their error."""

YOUNG_OBJECTS = 20_000
"""Allocations minus deallocations before Python's garbage collector looks for cycles. Thousands of objects
live as long as a request, and with Python's default of 700 it examines them repeatedly; few are in cycles.
"""


class StartError(Exception):
    """The process cannot start. The message is one line for the user."""


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 means any free one. Raises StartError if the address cannot be bound."""
    if not 0 <= port <= 65535:
        raise StartError(f"cannot listen on {host}:{port}: ports are 0 to 65535")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port}: no such host ({error.strerror})") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, True)
        listener.bind(address)
        listener.listen(BACKLOG)  # here, not in the server: two processes may bind, only one may listen
    except OSError as error:
        listener.close()
        cause = "port taken" if error.errno == errno.EADDRINUSE else str(error.strerror).lower()
        raise StartError(f"cannot listen on {host}:{port}: {cause}") from None
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the bound `host:port`."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether an address is a loopback address; also one of IPv4 in the form of IPv6."""
    try:
        address = ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@contextlib.asynccontextmanager
async def serving(
    app: App,
    listener: socket.socket,
    drain_s: float,
    bounds: HttpBounds | None = None,
    tls: ssl.SSLContext | None = None,
) -> AsyncIterator["Server"]:
    """Serve `app` on `listener` inside the block. Leaving the block drains, except by an exception.

    tls: a server's context (`penstock_runtime.tls`); None serves without TLS.
    """
    server = Server(app, bounds or HttpBounds(), tls)
    await server.start(listener)
    try:
        yield server
    except BaseException:
        drain_s = 0
        raise
    finally:
        await server.stop(drain_s)


def run_process(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> int:
    """Run `main(stop)` on uvloop to its end; `stop` is set by SIGTERM and SIGINT. Returns the exit code."""
    gc.freeze()  # modules live as long as the process, so collections need not examine them
    gc.set_threshold(YOUNG_OBJECTS)
    try:
        uvloop.run(_until_stopped(main))
    except StartError as error:
        print(error, file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        print("stopped by a second signal before it had drained", file=sys.stderr)
        return 1
    return 0


async def _until_stopped(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    work = asyncio.create_task(main(stop))

    def stop_or_quit() -> None:
        if stop.is_set():
            work.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_or_quit)
    await work


class Server:
    """Connections on one listening socket.

    connections: open connections. tasks: running apps.
    """

    def __init__(self, app: App, bounds: HttpBounds, tls: ssl.SSLContext | None) -> None:
        self._state, self._tls = ServerState(app, bounds), tls
        self.connections, self.tasks = self._state.connections, self._state.tasks
        self._listening: asyncio.Server | TlsServer | None = None

    async def start(self, listener: socket.socket) -> None:
        """Accept connections."""
        if self._tls is None:
            loop = asyncio.get_running_loop()
            self._listening = await loop.create_server(self.connection, sock=listener, backlog=BACKLOG)
        else:
            self._listening = TlsServer(
                listener, self.connection, self._tls, self._state.bounds, self.connections
            )

    def connection(self) -> HttpProtocol:
        """Return the protocol of a new connection."""
        return HttpProtocol(self._state)

    def close_after_responses(self) -> None:
        """Close each connection after its next response, so that clients connect to another server."""
        self._state.closing = True

    async def stop(self, drain_s: float) -> None:
        """Stop accepting, answer requests that have arrived, and end the others after `drain_s`."""
        self.close_after_responses()
        if self._listening is not None:
            self._listening.close()
        for connection in list(self.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(drain_s):
                await self._all_ended()
        # since Python 3.12 asyncio's own server also waits for its open connections, however long they last
        if isinstance(self._listening, TlsServer):
            await self._listening.wait_closed()
        left = set(self.tasks)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=FINAL_WRITE_S)

    async def _all_ended(self) -> None:
        """Wait until no connection is open and no app is answering."""
        while self.connections or self.tasks:
            self._state.ended.clear()
            await self._state.ended.wait()
