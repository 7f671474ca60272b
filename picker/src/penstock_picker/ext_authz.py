"""Envoy's `ext_authz` over HTTP/1.1: one request to the picker for each of a client.

Envoy sends the client's method, path, headers and body. 200 lets the request pass, with the headers that the
picker answers; any other answer goes to the client as it is. One connection carries one request at a time.
Python runs once when a request has arrived and once when its answer is written, with no task in between,
unless its body is long or its application's limits are asked for elsewhere.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import httptools
from penstock_routing.request.request_body import INLINE_BYTES
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import BACKLOG

from penstock_picker.pick import Picked
from penstock_picker.picker import Call, Picker

HEAD_BYTES = 65536
"""Longest head of a request, as Envoy's own default bound."""

TOO_LONG = ApiError(431, "the headers are too long", code="headers_too_large")
MALFORMED = ApiError(400, "the request is malformed", code="malformed_request")


@asynccontextmanager
async def ext_authz(
    picker: Picker, listener: socket.socket, tls: ssl.SSLContext | None = None
) -> AsyncIterator[None]:
    """Serve on the listener inside the block. Leaving it answers what is under way."""
    connections: set[ExtAuthzConnection] = set()
    server = await asyncio.get_running_loop().create_server(
        lambda: ExtAuthzConnection(picker, connections), sock=listener, backlog=BACKLOG, ssl=tls
    )
    try:
        yield
    finally:
        server.close()
        for connection in list(connections):
            connection.close()


class ExtAuthzConnection(asyncio.Protocol):
    """One connection from a gateway. open: of this picker's connections; it enters and leaves."""

    def __init__(self, picker: Picker, open: "set[ExtAuthzConnection]") -> None:
        self._picker, self._open = picker, open
        self._parser = httptools.HttpRequestParser(self)
        self._head: dict[bytes, bytes] = {}
        self._head_bytes = self._body_bytes = 0
        self._url, self._body = b"", list[bytes]()
        self._refusal: ApiError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """End what is under way."""
        self._open.discard(self)
        self._stop_timer()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close when the request that is under way has been answered."""
        self._closing = True
        if self._timer is None and self._task is None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        """Parse what has come."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            if not self._transport.is_closing():
                self._refuse(MALFORMED)

    def on_message_begin(self) -> None:
        """Forget the request before."""
        self._head, self._body, self._url = {}, [], b""
        self._head_bytes = self._body_bytes = 0
        self._refusal = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._picker.body_timeout_s, self._transport.abort)

    def on_url(self, url: bytes) -> None:
        """Take part of the path."""
        self._count_head(len(url))
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        self._count_head(len(name) + len(value))
        self._head[name.lower()] = value

    def on_body(self, body: bytes) -> None:
        """Take part of the body."""
        self._body_bytes += len(body)
        if self._body_bytes > self._picker.max_body_bytes:
            bound = self._picker.max_body_bytes
            self._refusal = ApiError(413, f"the body is longer than {bound} bytes", code="request_too_large")
            self._body.clear()
        else:
            self._body.append(body)

    def on_message_complete(self) -> None:
        """Decide."""
        self._stop_timer()
        if self._transport.is_closing():
            return
        if self._task is not None:  # a second request before the answer to the first: no gateway does that
            self._transport.abort()
            return
        if self._refusal is not None:
            self._refuse(self._refusal)
            return
        path = self._url.partition(b"?")[0].decode("latin-1")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        call = Call(self._parser.get_method().decode("latin-1"), path, self._head, body)
        if self._picker.shares_limits:
            self._later(self._picker.pick_sharing(call))
        elif len(body) > INLINE_BYTES:
            self._later(asyncio.to_thread(self._picker.pick, call))
        else:
            self._answer(self._pick(call))

    def _pick(self, call: Call) -> bytes:
        try:
            return allowed(self._picker.pick(call))
        except ApiError as error:
            return denied(error)

    def _count_head(self, more_bytes: int) -> None:
        self._head_bytes += more_bytes
        if self._head_bytes > HEAD_BYTES and not self._transport.is_closing():
            self._refuse(TOO_LONG)

    def _later(self, picking: Coroutine[Any, Any, Picked]) -> None:
        """Answer when it is known. Nothing is read from the connection meanwhile."""
        self._transport.pause_reading()
        self._task = asyncio.get_running_loop().create_task(self._wait(picking))

    async def _wait(self, picking: Coroutine[Any, Any, Picked]) -> None:
        try:
            answer = allowed(await picking)
        except ApiError as error:
            answer = denied(error)
        self._task = None
        self._answer(answer)
        self._transport.resume_reading()

    def _answer(self, answer: bytes) -> None:
        self._transport.write(answer)
        if self._closing or not self._parser.should_keep_alive():
            self._transport.close()

    def _refuse(self, error: ApiError) -> None:
        """Answer a request that cannot be read to its end, and close."""
        self._picker.metrics.refused(error.status)
        self._stop_timer()
        self._transport.write(denied(error))
        self._transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def allowed(picked: Picked) -> bytes:
    """Return the answer that lets a request pass."""
    lines = "".join(f"{name}: {value}\r\n" for name, value in picked.headers)
    return f"HTTP/1.1 200 OK\r\n{lines}content-length: 0\r\n\r\n".encode("latin-1")


def denied(error: ApiError) -> bytes:
    """Return the answer that the client gets instead."""
    body = error.body()
    lines = "".join(f"{name}: {value}\r\n" for name, value in error.headers)
    head = (
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{lines}\r\n"
    )
    return head.encode("latin-1") + body
