"""gRPC over the simulated network, as `grpc.aio` shows it: channels for clients, contexts for servicers.

Messages are serialized, so a peer of a later version is one that adds fields to them, and one of an earlier
version leaves out those that were added since (`_as_of`). A write waits while
the window of its stream is full. A client that is gone ends its call's handler by cancellation, and a
server that is gone ends the call with UNAVAILABLE.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from fault_simulation.hosts import HOST, Host
from fault_simulation.network import SILENT_S, Network, Pipe

UNKNOWN_FIELD = b"\xfa\x7f\x03new"
"""Field 2047, a string, which a later version sends."""

ADDED = {
    "Finished": ("thinking_tokens", "token_gaps_us", "cached_tokens"),
    "DescribeReply": ("metrics_url", "http_port"),
}
"""Fields that an earlier version does not have, by message."""

END = object()

Watch = Callable[[str], Callable[[Any], None]]


class Aborted(Exception):
    """A handler has ended its call with a status."""


def error_of(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    """Return what clients get."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)


def _as_of(skew: int, message: Any, serialize: Callable[[Any], bytes]) -> bytes:
    """Serialize a message as an earlier or a later version would."""
    if skew > 0:
        return serialize(message) + UNKNOWN_FIELD
    if skew < 0:
        message = _without_added(message)
    return serialize(message)


def _without_added(message: Any) -> Any:
    earlier = type(message)()
    earlier.CopyFrom(message)
    for field in ADDED.get(type(message).__name__, ()):
        earlier.ClearField(field)
    for event in getattr(earlier, "events", ()):
        if event.HasField("finished"):
            for field in ADDED["Finished"]:
                event.finished.ClearField(field)
    return earlier


class Channel:
    """A client's connection to one address.

    skew: 1 where its messages are of a later version, -1 where they are of an earlier one.
    watch: called for each call with its method; returns what is called with each of its messages.
    """

    def __init__(self, network: Network, address: str, watch: Watch, *, skew: int = 0) -> None:
        self._network, self._address, self._skew = network, address, skew
        self._watch = watch
        self._calls: dict[Call, None] = {}

    async def __aenter__(self) -> "Channel":
        return self

    async def __aexit__(self, *_: object) -> None:
        for call in list(self._calls):
            call.cancel()

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """Return a function that calls a method."""
        method = path.rpartition("/")[2]

        async def call(request: Any) -> Any:
            stream = self._call(method, request_serializer, response_deserializer)
            try:
                await stream.write(request)
                stream.done_writing()
                async for reply in stream:
                    return reply
                raise error_of(grpc.StatusCode.INTERNAL, "no reply")
            finally:
                stream.cancel()

        return call

    def stream_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """Return a function that begins a call."""
        method = path.rpartition("/")[2]
        return lambda: self._call(method, request_serializer, response_deserializer)

    def _call(self, method: str, serialize: Callable[[Any], bytes], parse: Callable[[bytes], Any]) -> "Call":
        seen, skew = self._watch(method), self._skew

        def write(message: Any) -> bytes:
            return _as_of(skew, message, serialize)

        def read(data: bytes) -> Any:
            message = parse(data)
            seen(message)
            return message

        call = Call(self._network, self._address, method, write, read)
        self._calls[call] = None
        call.ended.add_done_callback(lambda _: self._calls.pop(call, None))
        return call


class Servicer:
    """A service at an address: handlers by method, with how their messages are read and written."""

    def __init__(self, service: Any, formats: dict[str, tuple[Any, Any]], *, skew: int = 0) -> None:
        self.service, self._formats, self.skew = service, formats, skew
        self.streams = {"Session"}

    def formats(self, method: str) -> tuple[Callable[[bytes], Any], Callable[[Any], bytes]]:
        """Return how requests are read, and how replies are written."""
        return self._formats[method]


class Stream:
    """One direction of a call: a queue of messages at its reader's end, and a window at its writer's."""

    def __init__(self, network: Network, source: Host, sink: Host, ended: Callable[[], None]) -> None:
        self.pipe = Pipe(network, source, sink, self._take, self._drained)
        self._window_bytes = network.weather.window_bytes
        self._received: deque[Any] = deque()
        self._received_bytes = 0
        self._reader: asyncio.Future[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._ended = ended

    async def write(self, data: bytes) -> None:
        """Send a message once the window has room."""
        await self._writable.wait()
        self.pipe.put(data, len(data))
        if self.pipe.held + self._received_bytes > self._window_bytes:
            self._writable.clear()
            await self._writable.wait()

    def end(self, status: Any = END) -> None:
        """Send the end."""
        self.pipe.put((status,), 0)

    async def read(self) -> Any:
        """Return the next message, or the end in a tuple."""
        while not self._received:
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        item = self._received.popleft()
        if isinstance(item, bytes):
            self._received_bytes -= len(item)
            self._drained()
        return item

    def break_off(self, status: Any) -> None:
        """End it at its reader immediately, so that no writer waits for its window."""
        self.pipe.clear()
        self._take((status,))
        self._writable.set()

    def _take(self, item: Any) -> None:
        self._received.append(item)
        if isinstance(item, bytes):
            self._received_bytes += len(item)
        else:
            self._ended()
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _drained(self) -> None:
        if self.pipe.held + self._received_bytes <= self._window_bytes:
            self._writable.set()


class Call:
    """One call, as its client sees it. ended: set when it is over at the client's end."""

    def __init__(
        self,
        network: Network,
        address: str,
        method: str,
        serialize: Callable[[Any], bytes],
        parse: Callable[[bytes], Any],
    ) -> None:
        client = HOST.get()
        assert client is not None
        loop = asyncio.get_running_loop()
        self.network, self.client = network, client
        self._serialize, self._parse = serialize, parse
        self.ended: asyncio.Future[None] = loop.create_future()
        self._cancelled = False
        self._status: Any = None
        self.server: Host | None = None
        self._up: Stream | None = None
        self._down: Stream | None = None
        self._handler: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] = loop.create_future()
        self._opening = client.spawn(self._open(address, method))

    @property
    def ends(self) -> frozenset[str]:
        """Its hosts' names."""
        return frozenset((self.client.name, "" if self.server is None else self.server.name))

    # The client's side

    async def write(self, message: Any) -> None:
        """Send a message."""
        await asyncio.wait({self._opened})
        self._check()
        assert self._up is not None
        await self._up.write(self._serialize(message))
        self._check()

    def done_writing(self) -> None:
        """Close the sending side."""
        if self._up is not None:
            self._up.end()

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._messages()

    async def _messages(self) -> AsyncIterator[Any]:
        await asyncio.wait({self._opened})
        while True:
            if self._cancelled:
                raise asyncio.CancelledError
            if self._down is None:
                raise self._failure()
            item = await self._down.read()
            if self._cancelled:
                raise asyncio.CancelledError
            if isinstance(item, tuple):
                self._status = item[0]
                self._over()
                if self._status is END:
                    return
                raise self._failure()
            yield self._parse(item)

    def cancel(self) -> bool:
        """End the call."""
        if self.ended.done():
            return False
        self._cancelled = True
        self._opening.cancel()
        self._over()
        if self._down is not None and self._up is not None:
            self._down.break_off(None)
            self._up.end(None)
        return True

    def pause_reading(self, *, of_router: bool, paused: bool) -> None:
        """Let the client, which is the router, or else the server take what comes, or not."""
        stream = self._down if of_router else self._up
        if stream is not None:
            stream.pipe.pause(paused)

    def sever(self, *, silent: bool = False) -> None:
        """Break it for both ends."""
        if self._handler is not None:
            self._handler.cancel()
        if self._up is not None:
            self._up.break_off(END)
        if silent:
            asyncio.get_running_loop().call_later(SILENT_S, self._lose, context=self.client.context)
        else:
            self._lose()

    def _lose(self) -> None:
        if self.ended.done():
            return
        self._status = (grpc.StatusCode.UNAVAILABLE, "the connection broke")
        if self._down is not None:
            self._down.break_off(self._status)
        self._over()

    def _check(self) -> None:
        """Raise where the call is over."""
        if self._cancelled:
            raise asyncio.CancelledError
        if self._status is not None:
            raise (
                self._failure() if self._status is not END else asyncio.InvalidStateError("the call is over")
            )

    def _failure(self) -> grpc.aio.AioRpcError:
        code, details = self._status or (grpc.StatusCode.UNAVAILABLE, "no connection")
        return error_of(code, details)

    def _over(self) -> None:
        self.client.connections.pop(self, None)
        self.network.calls.pop(self, None)
        if not self.ended.done():
            self.ended.set_result(None)
        if not self._opened.done():
            self._opened.set_result(None)

    # The server's side

    async def _open(self, address: str, method: str) -> None:
        """Connect, and start the handler."""
        self.client.connections[self] = None
        try:
            async with asyncio.timeout(SILENT_S):
                await self.network.way(self.client, self.network.listener(address)[0])
            host, servicer = self.network.listener(address)
        except OSError as error:  # a timeout is one
            self._status = (grpc.StatusCode.UNAVAILABLE, str(error))
            self._over()
            return
        self.server = host
        host.connections[self] = self.network.calls[self] = None
        self._up = Stream(self.network, self.client, host, self._client_gone)
        self._down = Stream(self.network, host, self.client, lambda: None)
        self._handler = host.spawn(self._handle(servicer, method))
        self._opened.set_result(None)

    def _client_gone(self) -> None:
        """End the handler of a client that has cancelled. One that only closed its side continues."""
        if self._cancelled and self._handler is not None:
            self._handler.cancel()

    async def _handle(self, servicer: Servicer, method: str) -> None:
        assert self._up is not None and self._down is not None and self.server is not None
        read, write = servicer.formats(method)
        context = Context(self._down, lambda message: _as_of(servicer.skew, message, write), self.client.name)
        handler = getattr(servicer.service, method)
        try:
            if method in servicer.streams:
                await handler(_frames(self._up, read), context)
            else:
                async for request in _frames(self._up, read):
                    await context.write(await handler(request, context))
                    break
            self._down.end()
        except Aborted:
            self._down.end(context.status)
        except asyncio.CancelledError:
            if not self._cancelled and self.server.alive:
                self._down.end((grpc.StatusCode.CANCELLED, "the handler was cancelled"))
        except Exception:
            self._down.end((grpc.StatusCode.UNKNOWN, "the handler raised"))
            raise
        finally:
            self.server.connections.pop(self, None)


class Context:
    """The context of a call, for its handler."""

    def __init__(self, down: Stream, write: Callable[[Any], bytes], client: str) -> None:
        self._down, self._write, self._client = down, write, client
        self.status: Any = None

    async def write(self, message: Any) -> None:
        """Send a message."""
        await self._down.write(self._write(message))

    async def abort(self, code: grpc.StatusCode, details: str = "") -> None:
        """End the call with a status."""
        self.status = (code, details)
        raise Aborted(details)

    def peer(self) -> str:
        """Return where the client is."""
        return f"ipv4:{self._client}:1"


async def _frames(up: Stream, read: Callable[[bytes], Any]) -> AsyncIterator[Any]:
    while isinstance(item := await up.read(), bytes):
        yield read(item)
