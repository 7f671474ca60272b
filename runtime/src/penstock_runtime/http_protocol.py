"""uvicorn's httptools protocol with bounds on time and memory.

httptools reads a request head of any length for any time, and uvicorn answers unparsable requests in plain
text. This protocol bounds a head in bytes and seconds and the number of connections. Each refusal is an error
in OpenAI's format on a connection that then closes.

A response may end before its request does: a wrong key is answered with 401 while megabytes of body are still
arriving. Closing a connection with unread bytes resets it, and the client loses the response. So the rest of
the request is read and dropped, within bounds in bytes and seconds (nginx's lingering close).

A client that does not read its response keeps bytes in memory. If the write buffer has not become shorter for
`write_s` while nothing more can be written, the connection is aborted, and the app is notified as of any
disconnect.
"""

import asyncio
import http
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from penstock_runtime.asgi import PIECE_BYTES, Receive, Scope, Send, answer_error
from penstock_runtime.client_connection import CLIENT, ClientConnection
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
    half_closed_s: a client that has closed its sending side cannot be told from one that has disconnected. A
        response that is ready within this time still reaches it; afterwards it counts as disconnected.
    linger_s, linger_bytes: the rest of a request that is already answered is read for this long and up to
        this length; then the connection is aborted.
    write_s: longest time in which a client takes no written bytes; detected within twice that.
    last_call_s: when the server stops, an idle connection is closed after it, because its client may have
        sent a request before it could notice.
    """

    head_bytes: int = 65536
    head_s: float = 30.0
    keep_alive_s: int = 75
    connections: int = 16384
    half_closed_s: float = 0.1
    linger_s: float = 30.0
    linger_bytes: int = 64 * 2**20
    write_s: float = 30.0
    last_call_s: float = 0.2


@dataclass(frozen=True, slots=True)
class _Transport:
    """The transport as uvicorn sees it.

    close: closes it, or only the sending side while the client still sends.
    """

    write: Callable[[bytes], None]
    is_closing: Callable[[], bool]
    close: Callable[[], None]
    pause_reading: Callable[[], None]
    resume_reading: Callable[[], None]
    get_extra_info: Callable[..., Any]


class BoundedConfig(uvicorn.Config):
    """uvicorn's configuration with the bounds, which is how each connection gets them."""

    bounds: HttpBounds = HttpBounds()


class BoundedHttp(HttpToolsProtocol):
    """One connection."""

    config: BoundedConfig
    _head_bytes = 0
    _in_head = True
    _receiving = False
    _half_closed = False
    _refused = False
    _linger_bytes = 0
    _linger_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _unread_bytes = inf
    _head_timer: asyncio.TimerHandle | None = None
    _closing: asyncio.TimerHandle | None = None
    _refusal: ApiError | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timer of the first head."""
        self._wire, self._client = transport, ClientConnection(transport)
        self._extensions = {CLIENT: self._client}
        transport.set_write_buffer_limits(PIECE_BYTES)  # by default 512 KiB under TLS
        seen = _Transport(
            self._write,
            transport.is_closing,
            self._close_after_request,
            transport.pause_reading,
            transport.resume_reading,
            transport.get_extra_info,
        )
        super().connection_made(seen)  # type: ignore[arg-type]
        if len(self.connections) > self.config.bounds.connections:
            full = ApiError(503, "too many connections", "server_error", headers=(("retry-after", "1"),))
            transport.write(_response(full))
            transport.close()  # without lingering, which would hold connections over the bound
            return
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers, and break reference cycles, so that a lost connection is freed immediately.

        uvicorn leaves its keep-alive timer running, which would hold the connection until it ends. Objects
        that are only in cycles wait for a full garbage collection, and thousands of connections with them.
        """
        self._disarm()
        for timer in (self._closing, self._linger_timer, self._write_timer, self.timeout_keep_alive_task):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)
        self._client.lost()
        self.transport = self._wire  # an app that has not ended asks it whether it is closing
        del self.parser, self.flow
        self.cycle = None  # type: ignore[assignment]  # as before the first request

    def eof_received(self) -> bool:  # type: ignore[override]
        """Keep the sending side open for `half_closed_s` if a response is due.

        TLS has no half-closed connections.
        """
        if self._idle or self._refused or self._wire.get_extra_info("sslcontext") is not None:
            return False
        super().shutdown()
        self._closing = self.loop.call_later(self.config.bounds.half_closed_s, self._wire.close)
        return True

    def shutdown(self) -> None:
        """Close after the response that is due; without one, after `last_call_s`."""
        if self._idle:
            self._closing = self.loop.call_later(self.config.bounds.last_call_s, self._close_idle)
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Feed the parser, unless the head or the rest of an answered request exceeds its bound."""
        if self._wire.is_closing():
            return
        if (self._refused or self._linger_timer is not None) and not self._lingers_for(len(data)):
            return
        if self._in_head:
            self._head_bytes += len(data)
            self._arm()
        super().data_received(data)
        if self._in_head and self._head_bytes > self.config.bounds.head_bytes:
            self._refuse(self._head_too_large())

    def pause_writing(self) -> None:
        """Start to watch whether the client reads what is buffered."""
        super().pause_writing()
        self._client.paused = True
        self._watch_writes()

    def resume_writing(self) -> None:
        """Allow parts of responses to be written again."""
        super().resume_writing()
        self._client.paused = False

    def on_message_begin(self) -> None:
        """Begin a head. Its first bytes are already counted, unless they arrived behind a body."""
        self._in_head = True
        self._unset_keepalive_if_required()
        super().on_message_begin()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]  # the place that ASGI defines

    def on_headers_complete(self) -> None:
        """End a head."""
        head_bytes = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if head_bytes > self.config.bounds.head_bytes:
            self._refusal = self._head_too_large()
            raise self._refusal
        self._in_head, self._head_bytes, self._receiving = False, 0, True
        self._disarm()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Expect the next head, or close if this was the connection's last response.

        Reading continues, so that a disconnect is noticed, unless a pipelined request waits.
        """
        self._in_head, self._receiving = True, False
        super().on_message_complete()
        if not self.pipeline:
            self.flow.resume_reading()
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer, self._linger_bytes = None, 0
            if not self._half_closed:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
            else:
                self._wire.close()

    def on_response_complete(self) -> None:
        """Read the rest of the request, and watch whether the client reads the rest of the response."""
        if self._answered_early:
            self._linger()
        if self._wire.get_write_buffer_size():
            self._watch_writes()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse invalid HTTP, or a request that a callback above has refused."""
        self._refuse(self._refusal or ApiError(400, "this is not an HTTP/1.1 request"))

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _answered_early(self) -> bool:
        """Return whether the response is complete and its request is not."""
        return self._receiving and self._idle

    def _close_idle(self) -> None:
        if self._idle and self._head_bytes == 0:
            self._wire.close()

    def _head_too_large(self) -> ApiError:
        return ApiError(
            431, f"the request's headers are over the bound of {self.config.bounds.head_bytes} bytes"
        )

    def _refuse(self, error: ApiError) -> None:
        """Answer with an error, and drop further bytes. After a response that has begun, only close."""
        self._disarm()
        if self._refused or self._wire.is_closing():
            return
        self._refused = True
        if not self._idle:
            super().shutdown()
            if self.cycle.response_started or not self._receiving:
                return
            if self.pipeline:  # it is answered after those before it
                self.pipeline[0] = (self.cycle, _refusing(error))
                return
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._wire.write(_response(error))
        self._half_close()
        self._linger()
        self._watch_writes()

    def _write(self, data: bytes) -> None:
        """Write, unless the connection is closing: the app is notified later, and uvloop would raise here."""
        if not self._wire.is_closing():
            self._wire.write(data)

    def _close_after_request(self) -> None:
        """Close the connection; immediately if the whole request has been read."""
        if self._answered_early:
            self._half_close()
        else:
            self._wire.close()

    def _half_close(self) -> None:
        """Close the sending side, if the transport can (TLS cannot)."""
        self._half_closed = True
        if self._wire.can_write_eof():
            self._wire.write_eof()

    def _linger(self) -> None:
        """Read and drop for `linger_s`, so that the client is not reset before it has read its response."""
        if self._linger_timer is None:
            self._linger_timer = self.loop.call_later(self.config.bounds.linger_s, self._wire.abort)

    def _lingers_for(self, more_bytes: int) -> bool:
        """Return whether bytes of an answered request are parsed: none over the bound or after a refusal."""
        self._linger_bytes += more_bytes
        if self._linger_bytes > self.config.bounds.linger_bytes:
            self._wire.abort()
            return False
        return not self._refused

    def _watch_writes(self, unread_bytes: float = inf) -> None:
        """Check after `write_s` whether the write buffer has become shorter."""
        self._unread_bytes = unread_bytes
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.config.bounds.write_s, self._look_at_writes)

    def _look_at_writes(self) -> None:
        """Abort if the client has read nothing. While writing is not paused, nothing is checked."""
        self._write_timer = None
        waiting_bytes = self._wire.get_write_buffer_size()
        if not waiting_bytes or not (self.flow.write_paused or self._idle or self._refused):
            return
        if waiting_bytes < self._unread_bytes:
            self._watch_writes(waiting_bytes)
            return
        self._client.break_slow()

    def _arm(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.config.bounds.head_s, self._head_late)

    def _disarm(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _head_late(self) -> None:
        if self._head_bytes == 0:
            self._wire.close()
            return
        head_s = self.config.bounds.head_s
        self._refuse(
            ApiError(408, f"the request's headers did not arrive within {head_s:g} s", "timeout_error")
        )


def _refusing(error: ApiError) -> Callable[..., Awaitable[None]]:
    """Return an app that answers with this error."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await answer_error(send, error)

    return refuse


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
