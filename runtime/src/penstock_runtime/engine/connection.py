"""One HTTP/1.1 connection to an engine: an asyncio protocol around httptools' parser, with bounds.

    send_request ─▶ transport ─▶ engine ─▶ transport ─▶ httptools ─▶ receive, once per read

A connection has one request at a time. The part of an answer that a read returns is passed on in the same
turn of the event loop: no task is woken for it, and bytes are only copied if a read returns several chunks.
An engine is not trusted: bytes outside of bodies are bounded, and an answer that cannot be parsed, is
incomplete, or comes without a request ends the connection.
"""

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

HEAD_BYTES = 64 << 10
"""Longest head of an answer, and longest framing (chunk sizes, trailers) between parts of a body."""

Receive = Callable[[bytes], None]


class EngineGone(Exception):
    """The connection to the engine failed or was lost."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")


class EngineUnreachable(EngineGone):
    """No connection could be opened: no part of the request has been sent."""


CUT_SHORT = "the engine closed the connection before its answer was complete"

TLS_WITHOUT_ANSWER = (
    "the engine closed the connection after the TLS handshake; perhaps it requires its clients' certificates "
    "(vLLM's --ssl-cert-reqs 2)"
)
"""With TLS 1.3 a server that requires a certificate completes the handshake, and asyncio's sends no alert."""


class Malformed(Exception):
    """The engine's answer is invalid."""


class EngineConnection(asyncio.Protocol):
    """A connection to an engine. on_lost: called when it is closed, by either side.

    status, content_type: properties of the answer, set once `send_request` has returned.
    """

    transport: asyncio.Transport

    def __init__(self, on_lost: Callable[["EngineConnection"], None]) -> None:
        self._on_lost = on_lost
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None  # of `send_request`, then of `receive_body`
        self._receive: Receive | None = None
        self._pieces: list[bytes] = []  # of the body, that have not been passed on
        self._unaccounted_bytes = 0  # read since the last piece of a body
        self._received = False
        self._head_complete = self._complete = False
        self._framed = self._keep_alive = False
        self._error: EngineGone | None = None
        self.status, self.content_type = 0, b""

    @property
    def reusable(self) -> bool:
        """Return whether another request may follow: the last one and its answer are complete."""
        return (
            self._complete
            and self._keep_alive
            and not self.transport.is_closing()
            and not self.transport.get_write_buffer_size()
        )

    async def send_request(self, head: bytes, body: bytes) -> None:
        """Send a request, and wait for the head of its answer. Raises EngineGone."""
        self._head_complete = self._complete = self._framed = False
        self._unaccounted_bytes, self._error, self._receive = 0, None, None
        self.status, self.content_type = 0, b""
        self._pieces.clear()
        self._waiter = asyncio.get_running_loop().create_future()
        if self.transport.is_closing():
            self._break_off(ConnectionError("the engine closed the connection before a request"))
        else:
            # since Python 3.12 asyncio tries forever to send an empty part
            parts = (head, body) if body else (head,)
            self.transport.writelines(parts)
        await self._waiter

    async def receive_body(self, receive: Receive) -> None:
        """Pass each piece of the body to `receive` as it arrives, until the answer is complete.

        Raises EngineGone, and exceptions of `receive`.
        """
        self._receive = receive
        self._waiter = asyncio.get_running_loop().create_future()
        self._pass_on()
        if self._complete or self._error is not None:
            self._settle(self._error)
        await self._waiter

    def close(self) -> None:
        """Close the connection now. The engine then cancels an unfinished answer."""
        self.transport.abort()

    # The transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse, and pass on the parts of the body."""
        if self.transport.is_closing():
            return
        self._received = True
        self._unaccounted_bytes += len(data)
        try:
            self._parser.feed_data(data)
            if self._unaccounted_bytes > HEAD_BYTES:
                raise Malformed(f"more than {HEAD_BYTES} bytes without a part of a body")
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, Malformed) as error:
            self._break_off(error)
            self.transport.abort()
        self._pass_on()
        if self._complete:
            self._settle(None)

    def eof_received(self) -> None:
        """End an answer whose end is the end of the connection."""
        if self._head_complete and not self._framed and not self._complete:
            self._complete, self._keep_alive = True, False
            self._settle(None)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail an incomplete answer."""
        turned_away = not self._received and self.transport.get_extra_info("sslcontext") is not None
        self._break_off(exc or ConnectionError(TLS_WITHOUT_ANSWER if turned_away else CUT_SHORT))
        self._on_lost(self)
        del self._parser  # it refers to this object, and cycles wait for a full garbage collection

    # The parser's events

    def on_message_begin(self) -> None:
        """Refuse an answer without a request."""
        if self._complete or self._waiter is None:
            raise Malformed("the engine sent an answer without a request")
        self._framed, self.content_type = False, b""

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the relevant headers. Trailers are ignored."""
        if self._head_complete:
            return
        name = name.lower()
        if name == b"content-type":
            self.content_type = value
        elif name in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        """End the head, unless it is of an interim answer (1xx)."""
        status = self._parser.get_status_code()
        if status >= 200:
            self.status, self._head_complete = status, True
            self._settle(None)

    def on_body(self, piece: bytes) -> None:
        """Add a piece of the body."""
        self._unaccounted_bytes = 0
        self._pieces.append(piece)

    def on_message_complete(self) -> None:
        """End the answer."""
        if self._head_complete:
            self._complete, self._keep_alive = True, self._parser.should_keep_alive()

    def _pass_on(self) -> None:
        """Pass on the received part of the body, unless its reader has stopped."""
        pieces, waiter = self._pieces, self._waiter
        if not pieces or self._receive is None or waiter is None or waiter.done():
            return
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        try:
            self._receive(data)
        except Exception as error:
            self._settle(error)
            self.transport.abort()

    def _break_off(self, cause: Exception) -> None:
        """Fail the request, unless its answer is complete."""
        if self._complete or self._error is not None:
            return
        self._error = EngineGone(cause)
        self._error.__cause__ = cause
        self._settle(self._error)

    def _settle(self, error: Exception | None) -> None:
        """Wake the waiting task, once."""
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
