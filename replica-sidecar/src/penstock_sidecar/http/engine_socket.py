"""The Unix socket on which the engine asks about requests of gateways that have reached its own port.

An engine's API server, or each of several, connects once and sends all of its requests over the connection.
Each is served in a task of its own. A connection that breaks the protocol is closed: it ends the requests of
that API server, and no other.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import structlog
from penstock_proto.engine_calls import BrokenFrame, Call, FrameReader, FromEngine, FromSidecar, framed
from penstock_runtime.http_request import HttpRequest, serve
from penstock_runtime.serving import StartError

from penstock_sidecar.http.engine_call import EngineCall

UNREAD_BYTES = 64 << 20
"""Bytes that an engine has not read, above which its connection is closed."""

BACKLOG = 64

App = Callable[[EngineCall], Awaitable[None]]

log = structlog.get_logger()


class ApiServers:
    """The connections of the engine's API servers. serve_call: answers one request."""

    def __init__(self, serve_call: App) -> None:
        self.serve_call = serve_call
        self.open: set[_ApiServer] = set()

    def __bool__(self) -> bool:
        return bool(self.open)

    def connection(self) -> "_ApiServer":
        """Return the protocol of a new connection."""
        return _ApiServer(self)


@contextlib.asynccontextmanager
async def engine_connections(path: Path, serve_call: App) -> AsyncIterator[ApiServers]:
    """Serve the engine within the block. Raises StartError."""
    connections = ApiServers(serve_call)
    server = await asyncio.get_running_loop().create_unix_server(
        connections.connection, sock=_bound(path), backlog=BACKLOG
    )
    try:
        yield connections
    finally:
        server.close()
        await asyncio.to_thread(path.unlink, missing_ok=True)
        for connection in list(connections.open):
            connection.close()
        await asyncio.gather(*(connection.ended() for connection in list(connections.open)))


class _ApiServer(asyncio.Protocol):
    """One API server. calls: its requests that are served, by id."""

    def __init__(self, connections: ApiServers) -> None:
        self._connections = connections
        self._reader = FrameReader[FromEngine](FromEngine)
        self.calls: dict[int, EngineCall] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class
        self._connections.open.add(self)
        log.info("engine connected", connections=len(self._connections.open))

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except BrokenFrame as error:
            log.warning("engine's connection closed", cause=str(error))
            self.close()
            return
        for message in messages:
            if isinstance(message, Call):
                self._begin(message)
            elif (call := self.calls.get(message.id)) is not None:
                call.take(message)

    def connection_lost(self, error: Exception | None) -> None:
        self._connections.open.discard(self)
        self._transport = None
        for call in list(self.calls.values()):
            call.lost()

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.abort()

    async def ended(self) -> None:
        """Wait until all tasks have ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _begin(self, message: Call) -> None:
        call = self.calls[message.id] = EngineCall(message, self._send)
        task = asyncio.create_task(self._serve(call))
        self._tasks.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            self.calls.pop(message.id, None)

        task.add_done_callback(end)

    async def _serve(self, call: EngineCall) -> None:
        async def app(http: HttpRequest) -> None:
            await self._connections.serve_call(call)

        await serve(app, call.http)

    def _send(self, message: FromSidecar) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        transport.write(framed(message))
        if transport.get_write_buffer_size() > UNREAD_BYTES:
            log.warning("engine's connection closed", cause="it does not read")
            self.close()


def _bound(path: Path) -> socket.socket:
    """Return a listening socket that only this user can connect to. Raises StartError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():  # of an earlier process: the telemetry socket beside it excludes another one
            path.unlink()
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise StartError(f"cannot listen for the engine at {path}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
