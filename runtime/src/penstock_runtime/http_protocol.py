"""One HTTP/1.1 connection of a server: an asyncio protocol around httptools' parser, with bounds.

    bytes ─▶ httptools ─▶ HttpRequest ─▶ app ─▶ HttpRequest.answer, write ─▶ transport

Requests are answered one at a time, in order. A few may arrive while one is being answered (pipelining) and
wait; past a bound nothing more is read. A request that cannot be parsed or exceeds a bound is answered with
an error in OpenAI's format, and its connection closes.

A response may end before its request does: a wrong key is answered with 401 while megabytes of body are still
arriving. Closing a connection with unread bytes resets it, and the client loses the response. So the rest of
the request is read and dropped, within bounds in bytes and seconds (nginx's lingering close).

A client that does not read its response keeps bytes in memory. If the write buffer has not become shorter for
`write_s` while nothing more can be written, the connection is aborted, and the app is notified as of any
disconnect.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from math import inf
from time import time
from typing import Literal, cast
from urllib.parse import unquote

import httptools

from penstock_runtime.http_request import PIECE_BYTES, App, Header, HttpRequest, serve
from penstock_runtime.openai_errors import ApiError


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """Bounds of one process on its clients.

    head_bytes: request line and headers together.
    head_s: from the connection, or a request's first byte, to the end of its head.
    keep_alive_s: an idle connection is closed after it. Longer than the idle timeout of usual client pools,
        so that the client closes first.
    connections: open at once; more are answered 503 and closed. Under TLS they are counted from before the
        handshake, and those over the bound are closed without one.
    half_closed_s: a client that has closed its sending side looks like one that has disconnected. A
        response that is ready within this time still reaches it; afterwards it counts as disconnected.
    linger_s, linger_bytes: the rest of a request that is already answered is read for this long and up to
        this length; then the connection is aborted.
    write_s: longest time in which a client takes no written bytes; detected within twice that.
    last_call_s: when the server stops, an idle connection is closed after it, because its client may have
        sent a request before it could notice.
    """

    head_bytes: int = 32768
    head_s: float = 30.0
    keep_alive_s: int = 75
    connections: int = 16384
    half_closed_s: float = 0.1
    linger_s: float = 30.0
    linger_bytes: int = 64 * 2**20
    write_s: float = 30.0
    last_call_s: float = 0.2


class ServerState:
    """What all connections of one server share.

    connections: those that are open. tasks: apps that are answering.
    goodbye: whether connections close after their next response.
    ended: set when a connection or an app ends.
    """

    def __init__(self, app: App, bounds: HttpBounds) -> None:
        self.app, self.bounds = app, bounds
        self.connections: set[HttpProtocol] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.goodbye = False
        self.ended = asyncio.Event()
        self._dated_s, self._date_line = inf, b""

    @property
    def date_line(self) -> bytes:
        """The `date` header, whose resolution is a second."""
        now_s = int(time())
        if now_s != self._dated_s:
            self._dated_s = now_s
            self._date_line = f"date: {formatdate(now_s, usegmt=True)}\r\n".encode()
        return self._date_line

    def answer(self, request: HttpRequest) -> None:
        """Start the app in a task of its own."""
        task = asyncio.get_running_loop().create_task(serve(self.app, request))
        self.tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        self.ended.set()


MOST_UNANSWERED = 16
"""Requests of one connection. Past it nothing is read, and it is not noticed that the client leaves."""

Timer = Literal["head", "idle", "linger", "write", "half closed", "last call"]


class HttpProtocol(asyncio.Protocol):
    """One connection. write_paused: the write buffer is full."""

    transport: asyncio.Transport
    _url: bytes  # of the head that is arriving, as are:
    _headers: list[Header]
    _expects_100: bool
    _unread_bytes: float  # at the last look at the write buffer

    def __init__(self, server: ServerState) -> None:
        self._server, self._bounds = server, server.bounds
        self._loop = asyncio.get_running_loop()
        self._timers: dict[Timer, asyncio.TimerHandle] = {}
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0  # of the head, or of the trailers, that are arriving
        self._receiving: HttpRequest | None = None  # its body is arriving
        self._requests: deque[HttpRequest] = deque()  # unanswered; the first has its turn
        self._last_refusal: ApiError | None = None  # answers the last of them when it has its turn
        self._refused = self._half_closed = self._reading_paused = self.write_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._linger_bytes = 0

    # The transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(PIECE_BYTES)  # by default 512 KiB under TLS
        self._server.connections.add(self)
        if len(self._server.connections) > self._bounds.connections:
            full = ApiError(503, "too many connections", "server_error", headers=(("retry-after", "1"),))
            self.transport.write(_response(full))
            self.transport.close()  # without lingering, which would hold connections over the bound
            return
        self._start("head", self._bounds.head_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, notify the apps, and break reference cycles.

        Objects that are only in cycles wait for a full garbage collection, and thousands of connections with
        them.
        """
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._server.connections.discard(self)
        self._server.ended.set()
        requests, self._requests = self._requests, deque()
        self._receiving = None
        del self._parser
        for request in requests:
            request.lost()
        self.resume_writing()

    def eof_received(self) -> bool:
        """Keep the sending side open for `half_closed_s` if a response is due.

        TLS has no half-closed connections.
        """
        if not self._requests or self._refused or self.transport.get_extra_info("sslcontext") is not None:
            return False
        self._requests[-1].keep_alive = False
        self._start("half closed", self._bounds.half_closed_s, self.transport.close)
        return True

    def pause_writing(self) -> None:
        """Start to watch whether the client reads what is buffered."""
        self.write_paused = True
        self._watch_writes()

    def resume_writing(self) -> None:
        """Allow parts of responses to be written again."""
        self.write_paused = False
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head or the rest of an answered request exceeds its bound."""
        if self.transport.is_closing() or not self._parses(len(data)):
            return
        self._head_bytes += len(data)
        try:
            self._feed(data)
        except httptools.HttpParserError as error:
            cause = error.__context__  # what an event below has raised
            self._refuse(cause if isinstance(cause, ApiError) else _not_http())
            return
        if self._head_bytes > self._bounds.head_bytes:
            self._refuse(self._head_too_large())
        elif self._head_bytes and self._receiving is None:
            self._start("head", self._bounds.head_s, self._head_late)

    def _feed(self, data: bytes) -> None:
        """Parse. A client that asks for another protocol is answered in this one.

        The parser takes what is behind such a head for the other protocol, a body too. So the head is parsed
        again, without that header.
        """
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                head = self._head_without_upgrade()
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(head)
                rest = memoryview(rest)[upgrade.args[0] :]

    def shutdown(self) -> None:
        """Close after the response that is due; without one, after `last_call_s`."""
        if self._requests:
            self._requests[-1].keep_alive = False
        else:
            self._start("last call", self._bounds.last_call_s, self._close_idle)

    # The parser's events

    def on_message_begin(self) -> None:
        """Begin a head. Its first bytes are counted already, unless they arrived behind a body."""
        self._stop("idle")
        self._head_bytes = self._head_bytes or 1
        self._url, self._headers, self._expects_100 = b"", [], False

    def on_url(self, url: bytes) -> None:
        """Take a part of the URL."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header. Trailers are dropped: no app reads them."""
        if self._receiving is not None:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects_100 = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """End a head. The app is started, if no other request is before this one."""
        head_bytes = len(self._url) + sum([len(name) + len(value) + 4 for name, value in self._headers])
        if head_bytes > self._bounds.head_bytes:
            raise self._head_too_large()
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                raise ApiError(405, "CONNECT is not supported", code="method_not_allowed")
            return
        self._stop("head")
        self._head_bytes = 0
        version = self._parser.get_http_version()
        request = self._receiving = HttpRequest(
            self,
            self._parser.get_method().decode("ascii"),
            _path(self._url),
            self._headers,
            version=version,
            keep_alive=version == "1.1" and self._parser.should_keep_alive(),
            expects_100=self._expects_100 and version == "1.1",
        )
        self._requests.append(request)
        if len(self._requests) == 1:
            self._server.answer(request)
        elif len(self._requests) > MOST_UNANSWERED:
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._head_bytes = 0
        if self._receiving is not None:
            self._receiving.feed(body)

    def on_message_complete(self) -> None:
        """End a request. Reading continues, so that a disconnect is noticed."""
        if self._receiving is None:  # the head is parsed again
            return
        self._receiving.complete()
        self._receiving, self._head_bytes = None, 0
        if self._stop("linger"):
            self._linger_bytes = 0
            if self._half_closed:
                self.transport.close()
            else:
                self._start("idle", self._bounds.keep_alive_s, self.transport.close)

    # What a request needs of its connection

    @property
    def client_host(self) -> str:
        """The client's address."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def goodbye(self) -> bool:
        """Whether the connection closes after its next response."""
        return self._server.goodbye

    @property
    def date_line(self) -> bytes:
        """The `date` header."""
        return self._server.date_line

    async def writable(self) -> None:
        """Wait until the buffer has room, or the connection is lost."""
        self._writable = self._loop.create_future()
        await self._writable

    def pause_reading(self) -> None:
        """Read nothing more."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def read_on(self) -> None:
        """Read again, unless what has been read and not been answered is much."""
        if (
            self._reading_paused
            and len(self._requests) <= MOST_UNANSWERED
            and sum(request.buffered_bytes for request in self._requests) <= PIECE_BYTES
        ):
            self._reading_paused = False
            self.transport.resume_reading()

    def answered(self, request: HttpRequest) -> None:
        """Give the next request its turn. Read the rest of this one, and watch whether its client reads."""
        self._requests.popleft()
        if self.transport.get_write_buffer_size():
            self._watch_writes()
        if self._receiving is request:
            self._linger()
        if not request.keep_alive:
            self._close()
        elif self.transport.is_closing():
            return
        elif self._requests:
            self.read_on()
            self._next()
        elif self._receiving is None:
            self._start("idle", self._bounds.keep_alive_s, self.transport.close)

    def break_slow(self) -> None:
        """Abort, and drop unsent bytes, because the client does not read."""
        self.transport.abort()

    # Refusals, and the end of a connection

    def _next(self) -> None:
        """Answer the request that is first now."""
        if self._last_refusal is None or len(self._requests) > 1:
            self._server.answer(self._requests[0])
        else:
            self._requests.clear()
            self._answer_refused(self._last_refusal)

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, and drop further bytes. After a response that has begun, only close."""
        if self._refused or self.transport.is_closing():
            return
        self._refused = True
        broken = self._receiving
        if not self._requests:
            if broken is None:
                self._answer_refused(error)
            else:  # it is answered already, and the rest of it cannot be read
                self._half_close()
            return
        self._requests[-1].keep_alive = False
        if broken is None or broken.started:
            return
        if broken is not self._requests[0]:
            self._last_refusal = error
            return
        self._requests.clear()
        broken.lost()
        self._answer_refused(error)

    def _answer_refused(self, error: ApiError) -> None:
        self.transport.write(_response(error))
        self._half_close()
        self._linger()

    def _parses(self, more_bytes: int) -> bool:
        """Return whether more bytes are parsed: none after a refusal. Abort past the bound of lingering."""
        if self._refused or "linger" in self._timers:
            self._linger_bytes += more_bytes
            if self._linger_bytes > self._bounds.linger_bytes:
                self.transport.abort()
                return False
        return not self._refused

    def _linger(self) -> None:
        """Read and drop for `linger_s`, so that the client is not reset before it has read its response."""
        self.read_on()
        self._start("linger", self._bounds.linger_s, self.transport.abort)

    def _close(self) -> None:
        """Close; if the request is still arriving, only the sending side."""
        if self._receiving is None:
            self.transport.close()
        else:
            self._half_close()

    def _half_close(self) -> None:
        """Close the sending side, if the transport can (TLS cannot)."""
        self._half_closed = True
        if self.transport.can_write_eof():
            self.transport.write_eof()

    def _close_idle(self) -> None:
        if not self._requests and self._head_bytes == 0:
            self.transport.close()

    def _head_without_upgrade(self) -> bytes:
        lines = [
            b"%b %b HTTP/%b"
            % (self._parser.get_method(), self._url, self._parser.get_http_version().encode())
        ]
        lines += [b"%b: %b" % header for header in self._headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _head_too_large(self) -> ApiError:
        return ApiError(431, f"the request's headers are over the bound of {self._bounds.head_bytes} bytes")

    def _head_late(self) -> None:
        if self._head_bytes == 0:
            self.transport.close()
            return
        head_s = self._bounds.head_s
        self._refuse(
            ApiError(408, f"the request's headers did not arrive within {head_s:g} s", "timeout_error")
        )

    def _watch_writes(self) -> None:
        """Check after `write_s` whether the write buffer has become shorter."""
        self._unread_bytes = inf
        self._start("write", self._bounds.write_s, self._look_at_writes)

    def _look_at_writes(self) -> None:
        """Abort if the client has read nothing. While writing is not paused, nothing is checked."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if not waiting_bytes or (self._requests and not self.write_paused):
            return
        if waiting_bytes < self._unread_bytes:
            self._unread_bytes = waiting_bytes
            self._start("write", self._bounds.write_s, self._look_at_writes)
        elif self._requests:
            self._requests[0].break_slow()
        else:
            self.break_slow()

    # Timers, each running at most once

    def _start(self, timer: Timer, after_s: float, then: Callable[[], None]) -> None:
        """Start a timer that does not run."""
        if timer not in self._timers:
            self._timers[timer] = self._loop.call_later(after_s, self._fire, timer, then)

    def _stop(self, timer: Timer) -> bool:
        """Stop a timer. Returns whether it ran."""
        handle = self._timers.pop(timer, None)
        if handle is None:
            return False
        handle.cancel()
        return True

    def _fire(self, timer: Timer, then: Callable[[], None]) -> None:
        self._timers.pop(timer, None)
        then()


def _not_http() -> ApiError:
    return ApiError(400, "this is not an HTTP/1.1 request")


def _path(url: bytes) -> str:
    """Return a URL's path, decoded."""
    path = (httptools.parse_url(url).path or b"/").decode("ascii")
    return unquote(path) if "%" in path else path


def _response(error: ApiError) -> bytes:
    """Return an error as the last response of a connection."""
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in error.headers),
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + body
