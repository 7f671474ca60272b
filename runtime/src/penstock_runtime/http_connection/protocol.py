"""One HTTP/1.1 connection of a server: an asyncio protocol around httptools' parser, with bounds.

    bytes ─▶ httptools ─▶ HttpRequest ─▶ app ─▶ HttpRequest.answer, write ─▶ transport

Requests are answered one at a time, in order. A few may arrive while one is being answered (pipelining) and
wait; beyond a bound, reading pauses. A request that cannot be parsed or exceeds a bound is answered with an
error in OpenAI's format, and its connection closes.

A response may end before its request does: an invalid key is answered with 401 while megabytes of body are
still arriving. Closing a connection with unread bytes resets it, and the client loses the response. So the
rest of the request is read and dropped, within bounds in bytes and seconds (nginx's lingering close).

A client that does not read its response keeps bytes in memory. If the write buffer is full and has not become
shorter for `write_s`, the connection is aborted, and the app is notified as of any disconnect.
"""

import asyncio
from collections import deque
from math import inf
from typing import cast

import httptools

from penstock_runtime.http_connection.arriving_head import ArrivingHead
from penstock_runtime.http_connection.errors import (
    connect_unsupported,
    head_late,
    head_too_large,
    last_response,
    not_http,
    too_many_connections,
)
from penstock_runtime.http_connection.server_state import ServerState
from penstock_runtime.http_connection.timers import ConnectionTimers
from penstock_runtime.http_request import PIECE_BYTES, HttpRequest
from penstock_runtime.openai_errors import ApiError

MOST_UNANSWERED = 16
"""Most unanswered requests of one connection. Beyond it reading pauses, so a disconnect is not detected."""


class HttpProtocol(asyncio.Protocol):
    """A client's connection. write_paused: the write buffer is full."""

    transport: asyncio.Transport
    _head: ArrivingHead
    _unread_bytes: float  # at the last check of the write buffer

    def __init__(self, server: ServerState) -> None:
        self._server, self._bounds = server, server.bounds
        self._loop = asyncio.get_running_loop()
        self._timers = ConnectionTimers()
        self._parser = httptools.HttpRequestParser(self)
        self._head_bytes = 0  # of the head, or of the trailers, that are arriving
        self._receiving: HttpRequest | None = None  # the request whose body is arriving
        self._requests: deque[HttpRequest] = deque()  # unanswered; the first has its turn
        self._last_refusal: ApiError | None = None  # answers the last of them in its turn
        self._refused = self._half_closed = self._reading_paused = self.write_paused = False
        self._writable: asyncio.Future[None] | None = None
        self._linger_bytes = 0

    # The transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the first head."""
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(PIECE_BYTES)  # by default 512 KiB under TLS
        self._server.connections[self] = None
        if len(self._server.connections) > self._bounds.connections:
            self.transport.write(last_response(too_many_connections()))
            self.transport.close()  # without lingering, which would hold connections over the bound
            return
        self._timers.start("head", self._bounds.head_s, self._head_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, notify the apps, and break reference cycles.

        Objects that are only in cycles wait for a full garbage collection, and thousands of connections with
        them.
        """
        self._timers.stop_all()
        self._server.connections.pop(self, None)
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
        self._timers.start("half closed", self._bounds.half_closed_s, self.transport.close)
        return True

    def pause_writing(self) -> None:
        """Start to check whether the client reads buffered bytes."""
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
            cause = error.__context__  # the exception of an event below
            self._refuse(cause if isinstance(cause, ApiError) else not_http())
            return
        if self._head_bytes > self._bounds.head_bytes:
            self._refuse(head_too_large(self._bounds.head_bytes))
        elif self._head_bytes and self._receiving is None:
            self._timers.start("head", self._bounds.head_s, self._head_late)

    def _feed(self, data: bytes) -> None:
        """Parse. A client that requests another protocol is answered in HTTP/1.1.

        After such a head the parser treats all bytes, even a body, as the other protocol. So the head is
        parsed again, without that header.
        """
        rest: bytes | memoryview = data
        while rest:
            try:
                self._parser.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as upgrade:
                head = self._head.without_upgrade(self._parser)
                self._parser = httptools.HttpRequestParser(self)
                self._parser.feed_data(head)
                rest = memoryview(rest)[upgrade.args[0] :]

    def shutdown(self) -> None:
        """Close after the response in progress; without one, after `last_call_s`."""
        if self._requests:
            self._requests[-1].keep_alive = False
        else:
            self._timers.start("last call", self._bounds.last_call_s, self._close_idle)

    # The parser's events

    def on_message_begin(self) -> None:
        """Begin a head. Its first bytes are counted already, unless they arrived together with a body."""
        self._timers.stop("idle")
        self._head_bytes = self._head_bytes or 1
        self._head = ArrivingHead()

    def on_url(self, url: bytes) -> None:
        """Add a part of the URL."""
        self._head.add_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header. Trailers are dropped, because no app reads them."""
        if self._receiving is None:
            self._head.add_header(name, value)

    def on_headers_complete(self) -> None:
        """End a head. Starts the app, if no other request is before this one."""
        if self._head.size_bytes > self._bounds.head_bytes:
            raise head_too_large(self._bounds.head_bytes)
        if self._parser.should_upgrade():
            if self._parser.get_method() == b"CONNECT":
                raise connect_unsupported()
            return
        self._timers.stop("head")
        self._head_bytes = 0
        request = self._receiving = self._head.request(self, self._parser)
        self._requests.append(request)
        if len(self._requests) == 1:
            self._server.answer(request)
        elif len(self._requests) > MOST_UNANSWERED:
            self.pause_reading()

    def on_body(self, body: bytes) -> None:
        """Add a piece of a body."""
        self._head_bytes = 0
        if self._receiving is not None:
            self._receiving.feed(body)

    def on_message_complete(self) -> None:
        """End a request. Reading continues, so that a disconnect is detected."""
        if self._receiving is None:  # the head is parsed again
            return
        self._receiving.complete()
        self._receiving, self._head_bytes = None, 0
        if self._timers.stop("linger"):
            self._linger_bytes = 0
            if self._half_closed:
                self.transport.close()
            else:
                self._timers.start("idle", self._bounds.keep_alive_s, self.transport.close)

    # What a request needs of its connection

    @property
    def client_host(self) -> str:
        """Return the client's address."""
        peer = self.transport.get_extra_info("peername")
        return str(peer[0]) if isinstance(peer, tuple) else ""

    @property
    def closing(self) -> bool:
        """Return whether the connection closes after its next response."""
        return self._server.closing

    @property
    def date_line(self) -> bytes:
        """Return the `date` header."""
        return self._server.date_line

    async def writable(self) -> None:
        """Wait until the buffer has space, or the connection is lost."""
        self._writable = self._loop.create_future()
        await self._writable

    def pause_reading(self) -> None:
        """Pause reading."""
        if not self._reading_paused:
            self._reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading, unless there are too many unanswered bytes or requests."""
        if (
            self._reading_paused
            and len(self._requests) <= MOST_UNANSWERED
            and sum(request.buffered_bytes for request in self._requests) <= PIECE_BYTES
        ):
            self._reading_paused = False
            self.transport.resume_reading()

    def answered(self, request: HttpRequest) -> None:
        """Start the next request. Read the rest of this one, and check whether its client reads."""
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
            self.resume_reading()
            self._next()
        elif self._receiving is None:
            self._timers.start("idle", self._bounds.keep_alive_s, self.transport.close)

    def break_slow(self) -> None:
        """Abort, and drop unsent bytes, because the client does not read."""
        self.transport.abort()

    # Refusals, and the end of a connection

    def _next(self) -> None:
        """Answer the first of the waiting requests."""
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
            else:  # it is answered already, and its rest cannot be read
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
        self.transport.write(last_response(error))
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
        self.resume_reading()
        self._timers.start("linger", self._bounds.linger_s, self.transport.abort)

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

    def _head_late(self) -> None:
        if self._head_bytes == 0:
            self.transport.close()
            return
        self._refuse(head_late(self._bounds.head_s))

    def _watch_writes(self) -> None:
        """Check after `write_s` whether the write buffer has become shorter."""
        self._unread_bytes = inf
        self._timers.start("write", self._bounds.write_s, self._check_writes)

    def _check_writes(self) -> None:
        """Abort if writing is paused and the client has read no bytes since the last check."""
        waiting_bytes = self.transport.get_write_buffer_size()
        if not waiting_bytes or (self._requests and not self.write_paused):
            return
        if waiting_bytes < self._unread_bytes:
            self._unread_bytes = waiting_bytes
            self._timers.start("write", self._bounds.write_s, self._check_writes)
        elif self._requests:
            self._requests[0].break_slow()
        else:
            self.break_slow()
