"""One HTTP request and its response, as an application sees them.

    async def app(request: HttpRequest) -> None:
        body = await request.body(max_bytes=10_000)
        await request.answer(body)

A response is written whole by `answer`, or in parts: `start`, `send` or `write` for each part, `end`.
An application raises `ApiError` to answer with an error in OpenAI's format: as a response if nothing has been
written, otherwise as the stream's last event. Any other exception is a defect: it is logged with its
traceback, and the client gets a 500 in the same format, without the traceback.
"""

import asyncio
import http
from collections.abc import Awaitable, Callable, Iterable
from functools import cache
from typing import Protocol

import structlog

from penstock_runtime.openai_errors import ApiError, body_too_large

Header = tuple[bytes, bytes]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

PIECE_BYTES = 65536
"""Bytes of a whole response that are written at once, and of a body that are read before the app asks."""

BODY_S = 30.0
"""Default timeout for a body to arrive."""

LAST_CHUNK = b"0\r\n\r\n"
WITHOUT_BODY = frozenset({204, 304})
"""Statuses whose responses have no body."""

_PHRASES = {status.value: status.phrase for status in http.HTTPStatus}

log = structlog.get_logger()


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


class Connection(Protocol):
    """A request's interface to its connection. write_paused: whether the write buffer is full."""

    transport: asyncio.Transport
    write_paused: bool

    async def writable(self) -> None:
        """Wait until the buffer has space, or the connection is lost."""

    def pause_reading(self) -> None:
        """Pause reading."""

    def resume_reading(self) -> None:
        """Resume reading, unless there are too many unanswered bytes or requests."""

    def answered(self, request: "HttpRequest") -> None:
        """Record that a response is complete."""

    def break_slow(self) -> None:
        """Abort, and drop unsent bytes, because the client does not read."""

    @property
    def client_host(self) -> str:
        """Return the client's address."""

    @property
    def closing(self) -> bool:
        """Return whether connections close after their next response."""

    @property
    def date_line(self) -> bytes:
        """Return the `date` header."""


class HttpRequest:
    """A request of a client, and its response.

    method, path, headers: `path` is decoded and without the query; names of headers are in lower case.
    version: HTTP version, like "1.1".
    keep_alive: whether the connection stays open after the response.
    gone: whether the connection was lost before the response was complete. Then no more bytes are written.
    slow: whether it was aborted because the client did not read.
    on_gone: called when the connection is lost.
    buffered_bytes: bytes of its body that were received and not yet read by the app.
    started, ended: whether the response has begun, and whether it is complete.
    """

    __slots__ = (
        "_bodiless",
        "_chunked",
        "_complete",
        "_connection",
        "_expects_100",
        "_in_parts",
        "_pieces",
        "_transport",
        "_waiter",
        "buffered_bytes",
        "ended",
        "gone",
        "headers",
        "keep_alive",
        "method",
        "on_gone",
        "path",
        "slow",
        "started",
        "version",
    )

    def __init__(
        self,
        connection: Connection,
        method: str,
        path: str,
        headers: list[Header],
        *,
        version: str,
        keep_alive: bool,
        expects_100: bool,
    ) -> None:
        self._connection, self._transport = connection, connection.transport
        self.method, self.path, self.headers = method, path, headers
        self.version, self.keep_alive = version, keep_alive
        self.gone = self.slow = self.started = self.ended = False
        self.on_gone: Callable[[], None] | None = None
        self._expects_100 = expects_100
        self._pieces: list[bytes] = []
        self.buffered_bytes = 0
        self._complete = False
        self._waiter: asyncio.Future[None] | None = None
        self._bodiless = method == "HEAD"
        self._in_parts = self._chunked = False

    @property
    def client_host(self) -> str:
        """Return the client's address."""
        return self._connection.client_host

    async def body(
        self,
        max_bytes: int,
        timeout_s: float = BODY_S,
        hold: Callable[[int], None] = lambda more_bytes: None,
    ) -> bytes:
        """Return the body. Raises ApiError 413 over `max_bytes`, 408 after `timeout_s`; ClientGone.

        hold: called with the length of each piece before it is kept; its exception ends the reading.
        """
        taken: list[bytes] = []
        size_bytes = self._take(taken, 0, max_bytes, hold)
        if not self._complete:
            try:
                async with asyncio.timeout(timeout_s):
                    while not self._complete:
                        await self._more()
                        size_bytes = self._take(taken, size_bytes, max_bytes, hold)
            except TimeoutError:
                raise _late(timeout_s) from None
        return taken[0] if len(taken) == 1 else b"".join(taken)

    async def answer(
        self, body: bytes, status: int = 200, content_type: bytes = JSON, headers: Iterable[Header] = ()
    ) -> None:
        """Write a whole response. Of a long one, only one piece at a time is buffered."""
        has_body = status not in WITHOUT_BODY
        length = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))] if has_body else []
        head = self._head(status, (*length, *headers))
        if not has_body or self._bodiless:
            body = b""
        if len(body) <= PIECE_BYTES:
            self._write(head + body)
        else:
            self._write(head)
            rest = memoryview(body)
            for begin in range(0, len(rest), PIECE_BYTES):
                await self._writable()
                self._write(bytes(rest[begin : begin + PIECE_BYTES]))
        self._end()

    async def answer_error(self, error: ApiError) -> None:
        """Write an error as a whole response."""
        headers = [(name.encode(), value.encode()) for name, value in error.headers]
        await self.answer(error.body(), error.status, headers=headers)

    def start(self, status: int = 200, headers: Iterable[Header] = ()) -> None:
        """Begin a response in parts. An HTTP/1.0 client reads to the end of the connection instead."""
        self._in_parts = True
        self._chunked = self.version == "1.1" and not self._bodiless
        framing = ((b"transfer-encoding", b"chunked"),) if self._chunked else ()
        self._write(self._head(status, (*headers, *framing)))

    def write(self, data: bytes) -> bool:
        """Write a part. Returns False without writing if the client reads too slowly."""
        if self._connection.write_paused:
            return False
        if data:  # an empty chunk would end the response
            self._write(b"%x\r\n%b\r\n" % (len(data), data) if self._chunked else self._plain(data))
        return True

    async def send(self, data: bytes) -> None:
        """Write a part once the client has read enough."""
        await self._writable()
        self.write(data)

    async def end(self, data: bytes = b"") -> None:
        """Write the last part."""
        await self._writable()
        if not self._chunked:
            self._write(self._plain(data))
        elif data:
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data))
        else:
            self._write(LAST_CHUNK)
        self._end()

    def break_slow(self) -> None:
        """Abort the connection and drop its unsent bytes, because the client does not read."""
        self.slow = True
        self._connection.break_slow()

    def feed(self, data: bytes) -> None:
        """Add a piece of the body."""
        if self.ended:
            return
        self._pieces.append(data)
        self.buffered_bytes += len(data)
        if self.buffered_bytes > PIECE_BYTES:
            self._connection.pause_reading()
        self._wake()

    def complete(self) -> None:
        """Record that the body is complete."""
        self._complete = True
        self._wake()

    def lost(self) -> None:
        """Record that the connection is lost."""
        self.gone = True
        self._wake()
        if self.on_gone is not None:
            self.on_gone()

    async def fail(self, error: ApiError) -> None:
        """Answer with an error. A response that has begun is ended, a stream with the error's event."""
        if self.ended:
            return
        if not self.started:
            await self.answer_error(error)
        elif self._in_parts:
            await self.end(error.event())
        else:  # it is shorter than its content-length, so the client detects the error
            self.keep_alive = False
            self._end()

    def _take(self, taken: list[bytes], size_bytes: int, max_bytes: int, hold: Callable[[int], None]) -> int:
        """Move the received bytes to `taken`. Returns the body's length so far."""
        if self.gone:
            raise ClientGone
        pieces, self._pieces, self.buffered_bytes = self._pieces, [], 0
        self._connection.resume_reading()
        for piece in pieces:
            size_bytes += len(piece)
            if size_bytes > max_bytes:
                raise body_too_large(max_bytes)
            hold(len(piece))
            taken.append(piece)
        return size_bytes

    async def _more(self) -> None:
        """Wait for the next piece of the body."""
        if self._expects_100 and not self.started:
            self._expects_100 = False
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _writable(self) -> None:
        while self._connection.write_paused and not self.gone:
            await self._connection.writable()

    def _write(self, data: bytes) -> None:
        """Write, unless the connection is closing: the loss is reported later, and uvloop would raise."""
        if not self.gone and not self._transport.is_closing():
            self._transport.write(data)

    def _plain(self, data: bytes) -> bytes:
        """Return a part that is not chunked."""
        return b"" if self._bodiless else data

    def _end(self) -> None:
        self.ended = True
        self._pieces, self.buffered_bytes = [], 0
        if not self.gone:
            self._connection.answered(self)

    def _head(self, status: int, headers: Iterable[Header]) -> bytes:
        """Return status line and headers. Raises ValueError if a header has a line break."""
        lines = [_status_line(status), self._connection.date_line]
        for name, value in headers:
            if name == b"connection":
                self.keep_alive = False  # `close` is the only relevant value
            else:
                lines.append(b"%b: %b\r\n" % (name, value))
        if not self.keep_alive or self._connection.closing:
            self.keep_alive = False
            lines.append(b"connection: close\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
            raise ValueError("a header has a line break")
        self.started = True
        return head + b"\r\n"


App = Callable[[HttpRequest], Awaitable[None]]
"""Answers one request."""


async def serve(app: App, request: HttpRequest) -> None:
    """Let an app answer a request, and answer its exceptions."""
    try:
        await app(request)
        if not request.ended and not request.gone:
            raise RuntimeError("the application left its response incomplete")
    except ClientGone:
        if not request.started:  # no client reads it; it only ends the response
            await request.answer_error(ApiError(400, "the client went away"))
    except ApiError as error:
        await request.fail(error)
    except asyncio.CancelledError:
        await request.fail(ApiError(503, "the server stopped", type="server_error"))
    except Exception:
        log.exception("request failed", path=request.path)
        await request.fail(ApiError(500, "internal error", type="server_error"))


@cache
def _status_line(status: int) -> bytes:
    return f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()


def _late(timeout_s: float) -> ApiError:
    return ApiError(
        408,
        f"the request's body did not arrive within {timeout_s:g} s",
        type="timeout_error",
        headers=(("connection", "close"),),
    )
