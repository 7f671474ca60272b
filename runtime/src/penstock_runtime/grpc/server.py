"""The server's end: methods, each served by a coroutine of its own for each call.

A handler ends its call by returning, or by raising RpcError with the call's status. When the client cancels
the call, or is lost, the handler is cancelled.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TypeVar

import structlog

from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall, Message
from penstock_runtime.grpc.connection import GrpcConnection
from penstock_runtime.grpc.status import Headers, RpcError, Status, trailers
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.serving import BACKLOG
from penstock_runtime.tls_server import TlsServer

LAST_MESSAGE_S = 1.0
"""Longest wait for the message that is being sent when a call ends, for a handler that is cancelled, and for
a connection that is closed."""

Handler = Callable[[GrpcCall], Awaitable[None]]
Handlers = Mapping[str, Handler]
"""By method, like `/package.Service/Method`."""

Request = TypeVar("Request", bound=Message)
log = structlog.get_logger()


def unary(kind: type[Request], reply: Callable[[Request, str], Awaitable[Message]]) -> Handler:
    """Return the handler of a method with one request and one reply. reply: gets request and peer."""

    async def handle(call: GrpcCall) -> None:
        await call.write(await reply(await call.receive_one(kind), call.peer))

    return handle


@contextlib.asynccontextmanager
async def grpc_serving(
    handlers: Handlers,
    listener: socket.socket,
    tls: ssl.SSLContext | None = None,
    *,
    stop_s: float = 1.0,
    bounds: GrpcBounds | None = None,
) -> AsyncIterator[None]:
    """Serve methods on a listening socket within the block. Open calls have `stop_s` to end afterwards."""
    server = GrpcServer(handlers, bounds)
    listening: asyncio.Server | TlsServer
    if tls is None:
        loop = asyncio.get_running_loop()
        listening = await loop.create_server(server.connection, sock=listener, backlog=BACKLOG)
    else:
        handshakes = HttpBounds(connections=server.bounds.connections)
        listening = TlsServer(listener, server.connection, tls, handshakes, server.connections)
    try:
        yield
    finally:
        listening.close()
        await server.stop(stop_s)
        # since Python 3.12 asyncio's own server also waits for its open connections, however long they last
        if isinstance(listening, TlsServer):
            await listening.wait_closed()


class GrpcServer:
    """The connections of one server. connections: those that are open."""

    def __init__(self, handlers: Handlers, bounds: GrpcBounds | None = None) -> None:
        self._handlers, self.bounds = handlers, bounds or GrpcBounds()
        self.connections: set[GrpcConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def connection(self) -> GrpcConnection:
        """Return the protocol of a new connection."""
        return GrpcConnection(self._opened, self.bounds, self.connections)

    async def stop(self, stop_s: float) -> None:
        """Refuse calls, wait up to `stop_s` for open ones, cancel the others, and close all connections."""
        self._stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=stop_s)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_MESSAGE_S)
        closing = [connection.closed for connection in self.connections]
        for connection in list(self.connections):
            connection.close()
        if closing:
            await asyncio.wait(closing, timeout=LAST_MESSAGE_S)

    def _opened(self, connection: GrpcConnection, call: GrpcCall, headers: Mapping[bytes, bytes]) -> None:
        refused = self._refusal(connection, headers)
        if refused is not None:
            connection.respond(call, refused)
            return
        handler = self._handlers[headers[b":path"].decode()]
        task = asyncio.create_task(self._serve(connection, call, handler))
        call.when_over = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _refusal(self, connection: GrpcConnection, headers: Mapping[bytes, bytes]) -> Headers | None:
        """Return the trailers of a call that is not served; None if it is."""
        path = headers.get(b":path", b"").decode("latin-1")
        if self._stopping:
            return trailers(Status.UNAVAILABLE, "this server is stopping")
        if connection.calls > self.bounds.calls:
            return trailers(Status.RESOURCE_EXHAUSTED, f"over {self.bounds.calls} calls at a time")
        if headers.get(b"grpc-encoding", b"identity") != b"identity":
            return trailers(Status.UNIMPLEMENTED, "compressed messages are not supported")
        if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
            return trailers(Status.INVALID_ARGUMENT, "not a gRPC request")
        if path not in self._handlers:
            return trailers(Status.UNIMPLEMENTED, f"there is no method {path}")
        return None

    async def _serve(self, connection: GrpcConnection, call: GrpcCall, handler: Handler) -> None:
        """Serve one call, and send its status."""
        try:
            await handler(call)
            status = await _status_after_last_message(call)
        except RpcError as error:
            status = trailers(error.status, error.details)
        except asyncio.CancelledError:  # the client has cancelled, or the server stops
            call.when_over = _nothing
            connection.respond(call, trailers(Status.UNAVAILABLE, "this server is stopping"))
            raise
        except Exception:
            log.exception("call failed")
            status = trailers(Status.UNKNOWN, "the handler failed")
        call.when_over = _nothing
        connection.respond(call, status)


async def _status_after_last_message(call: GrpcCall) -> Headers:
    try:
        async with asyncio.timeout(LAST_MESSAGE_S):
            await call.all_sent()
    except TimeoutError:
        return trailers(Status.RESOURCE_EXHAUSTED, "the client does not read")
    return trailers(Status.OK)


def _nothing() -> None:
    """Do nothing."""
