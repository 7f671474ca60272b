"""Serving of a Penstock process: listen, report readiness, stop.

    def main() -> int:
        return run_process(lambda stop: serve_router(options, stop))

    async def serve_router(options, stop):
        listener = listen(options.host, options.port)
        async with serving(app, listener, drain_s=30) as server:
            log.info("ready", address=address_of(listener))
            await stop.wait()
            server.say_goodbye()

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
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from typing import Any

import uvicorn
import uvloop

from penstock_runtime.asgi import App, with_errors
from penstock_runtime.http_protocol import BoundedConfig, BoundedHttp, HttpBounds
from penstock_runtime.tls_server import TlsServer

BACKLOG = 2048
"""Connections not yet accepted; the kernel caps it at net.core.somaxconn."""

LAST_WORDS_S = 1.0
"""Seconds for responses that were cut off at the end of a drain to send their error."""

CLOSE = (b"connection", b"close")
"""The header of a response after which its connection is closed."""

DATE_S = 1.0
"""Seconds between updates of the date header, whose resolution is a second."""

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
    """Return whether an address is a loopback address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


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
    server = Server(_config(app, drain_s, bounds or HttpBounds()), tls)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    started = asyncio.create_task(server.up.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield server
    except BaseException:
        server.config.timeout_graceful_shutdown = 0
        raise
    finally:
        started.cancel()
        server.leave()
        await running
        if server.server_state.tasks:
            await asyncio.wait(set(server.server_state.tasks), timeout=LAST_WORDS_S)


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


class Server(uvicorn.Server):
    """uvicorn's server without its own signal handlers, which would end a drained process by the signal."""

    config: BoundedConfig

    def __init__(self, config: BoundedConfig, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(config)
        self._tls = tls
        self.up, self._leaving = asyncio.Event(), asyncio.Event()

    def say_goodbye(self) -> None:
        """Close each connection after its next response, so that clients connect to another server."""
        if CLOSE not in self.config.encoded_headers:
            self.config.encoded_headers = [*self.config.encoded_headers, CLOSE]
            self.server_state.default_headers = [*self.server_state.default_headers, CLOSE]

    def leave(self) -> None:
        """Begin to stop immediately, not at uvicorn's next tick."""
        self.say_goodbye()
        self.should_exit = True
        self._leaving.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Install no signal handlers; `run_process` has its own."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen as uvicorn does, with bounds on TLS handshakes, and set `up`."""
        self.servers = [await self._listening(listener) for listener in sockets or ()]  # type: ignore[misc]
        self.started = True
        self.up.set()

    async def _listening(self, listener: socket.socket) -> asyncio.Server | TlsServer:
        if self._tls is None:
            loop = asyncio.get_running_loop()
            return await loop.create_server(self._connection, sock=listener, backlog=BACKLOG)
        bounds, standing = self.config.bounds, self.server_state.connections
        return TlsServer(listener, self._connection, self._tls, bounds, standing)

    def _connection(self) -> BoundedHttp:
        return BoundedHttp(self.config, self.server_state, self.lifespan.state)

    async def main_loop(self) -> None:
        """Update the date header every second; uvicorn's own loop wakes ten times as often."""
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._leaving.wait()


def _config(app: App, drain_s: float, bounds: HttpBounds) -> BoundedConfig:
    config = BoundedConfig(
        with_errors(app),
        http=BoundedHttp,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=bounds.keep_alive_s,
        timeout_graceful_shutdown=drain_s,  # type: ignore[arg-type]  # passed to asyncio.wait_for unchanged
    )
    config.bounds = bounds
    return config
