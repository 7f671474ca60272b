"""uvicorn's httptools protocol, with the bounds that it lacks.

httptools reads a request head of any length and waits for it for any time, and uvicorn answers what it
cannot parse in plain text. Here a head has a bound in bytes and in seconds, connections have a bound in
number, and each refusal is an error in OpenAI's shape on a connection that then closes.
"""

import asyncio
import http
from dataclasses import dataclass

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock_runtime.openai_errors import ApiError

ABORT = "penstock.abort"
"""Extension in an ASGI scope: call it to break the connection at once, though the client does not read."""


@dataclass(frozen=True, slots=True)
class HttpBounds:
    """What one process takes from its clients.

    head_bytes: request line and headers together.
    head_s: from the connection, or a request's first byte, to the end of its head.
    keep_alive_s: an idle connection is closed after it. Longer than clients' own pools keep one, so that
        it is they who close.
    connections: open at once; more are answered 503 and closed.
    half_closed_s: a client that has closed its side looks like one that has gone. What is ready within this
        still reaches it; after it the client has gone.
    last_call_s: when the server stops, an idle connection is closed after it: its client may have asked
        before it could hear of that.
    """

    head_bytes: int = 65536
    head_s: float = 30.0
    keep_alive_s: int = 75
    connections: int = 16384
    half_closed_s: float = 0.1
    last_call_s: float = 0.2


class BoundedConfig(uvicorn.Config):
    """uvicorn's settings and our bounds, which is how the bounds reach each connection."""

    bounds: HttpBounds = HttpBounds()


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    config: BoundedConfig
    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None
    _refusal: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock of the first head."""
        super().connection_made(transport)
        if len(self.connections) > self.config.bounds.connections:
            self._refuse(
                ApiError(503, "too many connections", "server_error", headers=(("retry-after", "1"),))
            )
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of the clocks."""
        self._disarm()
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep our side open for a moment, if an answer is due."""
        if self._idle:
            return False
        self.cycle.keep_alive = False
        self._closing = self.loop.call_later(self.config.bounds.half_closed_s, self.transport.close)
        return True

    def shutdown(self) -> None:
        """Close with the answer that is due; where none is, in a moment."""
        if self._idle:
            self._closing = self.loop.call_later(self.config.bounds.last_call_s, self._close_idle)
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head has grown past its bound."""
        if self.transport.is_closing():
            return
        if self._in_head:
            self._head_bytes += len(data)
            self._arm()
        super().data_received(data)
        if self._in_head and self._head_bytes > self.config.bounds.head_bytes:
            self._refuse(self._head_too_large())

    def on_message_begin(self) -> None:
        """Begin a head. Its first bytes were counted when they came, unless they came behind a body."""
        self._in_head = True
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]  # ASGI's own place

    def on_headers_complete(self) -> None:
        """End a head."""
        head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head_bytes > self.config.bounds.head_bytes:
            self._refusal = self._head_too_large()
            raise self._refusal
        self._in_head, self._head_bytes = False, 0
        self._disarm()
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Expect the next head, on uvicorn's keep-alive clock until its first byte."""
        self._in_head = True
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, or what a callback above has refused."""
        self._refuse(self._refusal or ApiError(400, "this is not an HTTP/1.1 request"))

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _close_idle(self) -> None:
        if self._idle and self._head_bytes == 0:
            self.transport.close()

    def _head_too_large(self) -> ApiError:
        return ApiError(
            431, f"the request's headers are over the bound of {self.config.bounds.head_bytes} bytes"
        )

    def _refuse(self, error: ApiError) -> None:
        self._disarm()
        if not self.transport.is_closing():
            self.transport.write(_response(error))
            self.transport.close()

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.config.bounds.head_s, self._head_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        self._head_timer = None
        if self._head_bytes == 0:
            self.transport.close()
            return
        head_s = self.config.bounds.head_s
        self._refuse(
            ApiError(408, f"the request's headers did not arrive within {head_s:g} s", "timeout_error")
        )


def _response(error: ApiError) -> bytes:
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} {http.HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        *(f"{name}: {value}" for name, value in error.headers),
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + body
