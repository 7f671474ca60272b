"""One HTTP/2 connection with its calls, at the client's or the server's end.

Frames that are received are handled in one turn of the event loop, and what they cause to be sent is written
to the socket once. A peer that sends nothing for some time is pinged, and is lost if nothing comes within
some more, so a host that vanishes is detected also on an idle connection.

Bounded are messages, calls at a time, the bytes that a peer may send before they are taken, and those that
it makes this end send without reading them, like answers to pings. h2 bounds headers, and frames once it has
them whole (`frame_lengths`). A peer may open calls
before it has read how many it may have, so those over the bound are refused one by one (`server`), and end
the connection only once the peer has confirmed the bound.
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import cast

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
    WindowUpdated,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes, Settings

from penstock_runtime.grpc.bounds import GrpcBounds
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.frame_lengths import PREFACE_BYTES, FrameLengths
from penstock_runtime.grpc.status import Headers, RpcError, Status, error_of, error_of_reset

RESPONSE: Headers = [(b":status", b"200"), (b"content-type", b"application/grpc")]
"""Headers of every response."""

_UNCONFIRMED = {SettingCodes.MAX_CONCURRENT_STREAMS: 2**31 - 1, SettingCodes.MAX_HEADER_LIST_SIZE: 2**16}
"""Settings until the peer has confirmed those of the bounds: HTTP/2's own, and bounded headers."""

Opened = Callable[["GrpcConnection", GrpcCall, Mapping[bytes, bytes]], None]
"""Called for each call that the peer opens, with its headers."""


class GrpcConnection(asyncio.Protocol):
    """One connection. Calls that are open when it is lost end with UNAVAILABLE.

    opened: for the server's end; None for the client's.
    connections: the server's open connections; the connection closes if there are too many.
    lost: the error of calls that are open when it is lost. closed: done when it is.
    """

    def __init__(
        self,
        opened: Opened | None = None,
        bounds: GrpcBounds | None = None,
        connections: "set[GrpcConnection] | None" = None,
    ) -> None:
        self._opened, self._bounds = opened, bounds or GrpcBounds()
        self._connections: set[GrpcConnection] = set() if connections is None else connections
        self._h2 = H2Connection(H2Configuration(client_side=opened is None, header_encoding=None))
        self._h2.local_settings = Settings(client=opened is None, initial_values=_UNCONFIRMED)
        preface_bytes = 0 if opened is None else PREFACE_BYTES
        self._lengths = FrameLengths(preface_bytes, self._h2.max_inbound_frame_size)
        self._calls: dict[int, GrpcCall] = {}
        self._begun: set[int] = set()  # calls whose response headers this end has sent
        self._transport: asyncio.Transport | None = None
        self._writable = True
        self._loop = asyncio.get_running_loop()
        self._received_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.lost = RpcError(Status.UNAVAILABLE, "the connection broke")
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.peer = ""

    # Of asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the preface."""
        self._transport = cast(asyncio.Transport, transport)
        if len(self._connections) >= self._bounds.connections:
            self._transport.abort()
            return
        self._connections.add(self)
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._h2.initiate_connection()
        self._h2.update_settings(_settings(self._bounds))  # valid once the peer has confirmed them
        self._h2.increment_flow_control_window(self._bounds.connection_window_bytes)
        self._flush()
        self._received_s = self._loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Handle frames."""
        self._received_s = self._loop.time()
        try:
            self._lengths.check(data)
            for event in self._h2.receive_data(data):
                self._handle(event)
        except ProtocolError as error:
            self.close(RpcError(Status.INTERNAL, f"the peer broke HTTP/2: {error}"))
            return
        self._flush()

    def pause_writing(self) -> None:
        """Send no messages."""
        self._writable = False

    def resume_writing(self) -> None:
        """Send messages again."""
        self._writable = True
        self._send_all()

    def connection_lost(self, exc: Exception | None) -> None:
        """End all calls."""
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end(self.lost)
        self._connections.discard(self)
        self.closed.set_result(None)

    # Of calls

    @property
    def calls(self) -> int:
        """The number of open calls."""
        return len(self._calls)

    @property
    def is_open(self) -> bool:
        """Whether calls can be opened."""
        return self._transport is not None and not self._transport.is_closing()

    def open(self, headers: Headers) -> GrpcCall:
        """Begin a call to the peer. Raises RpcError if the connection is lost, or has too many calls."""
        if not self.is_open:
            raise self.lost
        try:
            id = self._h2.get_next_available_stream_id()
            self._h2.send_headers(id, headers)
        except ProtocolError as error:
            raise RpcError(Status.UNAVAILABLE, f"no further call on this connection: {error}") from None
        call = self._calls[id] = GrpcCall(self, id, self.peer, self._bounds.message_bytes)
        self._flush()
        return call

    def send(self, call: GrpcCall) -> None:
        """Send as much of the call's unsent bytes as windows and socket take."""
        if self._calls.get(call.id) is call and self.is_open:
            self._begin_response(call)
            self._send(call)
            self._flush()

    def acknowledge(self, call: GrpcCall, size: int) -> None:
        """Let the peer send this many more bytes."""
        if size and self.is_open:
            self._acknowledge(size, call.id)
            self._flush()

    def finish_sending(self, call: GrpcCall) -> None:
        """Close the client's direction."""
        if self._calls.get(call.id) is call and self.is_open:
            with suppress(ProtocolError):  # the stream has ended
                self._h2.end_stream(call.id)
            self._flush()

    def reset(self, call: GrpcCall, code: ErrorCodes = ErrorCodes.CANCEL) -> None:
        """End the call at the peer."""
        if self._calls.pop(call.id, None) is call and self.is_open:
            self._begun.discard(call.id)
            with suppress(ProtocolError):  # the stream has ended
                self._h2.reset_stream(call.id, code)
            self._flush()

    def respond(self, call: GrpcCall, trailers: Headers) -> None:
        """End a call of the peer. Bytes of a message that are not sent yet are dropped."""
        if self._calls.pop(call.id, None) is not call or not self.is_open:
            return
        begun = call.id in self._begun
        self._begun.discard(call.id)
        with suppress(ProtocolError):  # the stream has ended, in frames that are handled next
            self._h2.send_headers(call.id, trailers if begun else RESPONSE + trailers, end_stream=True)
            if not call.received:
                self._h2.reset_stream(call.id, ErrorCodes.NO_ERROR)
        self._flush()
        call.end(None)

    def close(self, why: RpcError | None = None) -> None:
        """Close the connection. why: the error of open calls."""
        if why is not None:
            self.lost = why
        if self._transport is None or self._transport.is_closing():
            return
        with suppress(ProtocolError):  # the peer has closed it
            self._h2.close_connection()
        self._flush()
        if self._writable:
            self._transport.close()
        else:
            self._transport.abort()

    # Frames

    def _handle(self, event: Event) -> None:
        call = self._calls.get(getattr(event, "stream_id", None) or 0)
        if isinstance(event, DataReceived):
            if call is None:  # it has ended at this end
                self._acknowledge(event.flow_controlled_length, event.stream_id)
            else:
                call.take(event.data, event.flow_controlled_length)
        elif isinstance(event, WindowUpdated | RemoteSettingsChanged):
            self._send_all()
        elif isinstance(event, RequestReceived):
            self._open_for_peer(event)
        elif isinstance(event, ConnectionTerminated):
            self.close(RpcError(Status.UNAVAILABLE, "the peer closed the connection"))
        elif call is not None:
            self._handle_end(event, call)

    def _handle_end(self, event: Event, call: GrpcCall) -> None:
        if isinstance(event, ResponseReceived | TrailersReceived):
            call.response.update(event.headers)
        elif isinstance(event, StreamReset):
            del self._calls[call.id]
            self._begun.discard(call.id)
            call.end(error_of_reset(event.error_code))
        elif isinstance(event, StreamEnded):
            if self._opened is not None:
                call.end_receiving()
                return
            self.reset(call, ErrorCodes.NO_ERROR)
            call.end(error_of(call.response))

    def _open_for_peer(self, event: RequestReceived) -> None:
        assert self._opened is not None
        id = event.stream_id
        call = self._calls[id] = GrpcCall(self, id, self.peer, self._bounds.message_bytes)
        self._opened(self, call, dict(event.headers))

    def _acknowledge(self, size: int, id: int) -> None:
        with suppress(ProtocolError):  # the connection ends, by frames that are handled next
            self._h2.acknowledge_received_data(size, id)

    def _send_all(self) -> None:
        for call in [call for call in self._calls.values() if call.unsent]:
            self._send(call)
        self._flush()

    def _send(self, call: GrpcCall) -> None:
        with suppress(ProtocolError):  # the stream has ended, in frames that are handled next
            while call.unsent and self._writable:
                window = self._h2.local_flow_control_window(call.id)
                size = min(len(call.unsent), window, self._h2.max_outbound_frame_size)
                if size <= 0:
                    return
                self._h2.send_data(call.id, call.unsent[:size])
                call.sent(size)
                if call.unsent:
                    self._flush()

    def _begin_response(self, call: GrpcCall) -> None:
        if self._opened is not None and call.id not in self._begun:
            self._begun.add(call.id)
            self._h2.send_headers(call.id, RESPONSE)

    def _flush(self) -> None:
        data = self._h2.data_to_send()
        if not data or self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if not self._writable and self._transport.get_write_buffer_size() > self._bounds.unread_bytes:
            self.lost = RpcError(Status.UNAVAILABLE, "the peer does not read")
            self._transport.abort()

    def _watch(self) -> None:
        """Ping the peer when it has been silent for long enough."""
        silent_at_s = self._received_s + self._bounds.ping_s
        self._timer = self._loop.call_at(silent_at_s, self._ping, self._received_s)

    def _ping(self, received_s: float) -> None:
        """Ping the peer unless something was received since then."""
        assert self._transport is not None
        if self._transport.is_closing():  # and the peer does not take the last bytes
            self._transport.abort()
            return
        if self._received_s > received_s:
            self._watch()
            return
        self._h2.ping(b"penstock")
        self._flush()
        self._timer = self._loop.call_later(self._bounds.pong_s, self._end_silent, received_s)

    def _end_silent(self, received_s: float) -> None:
        """End the connection unless something was received since then."""
        if self._received_s > received_s:
            self._watch()
        elif self._transport is not None:
            self.lost = RpcError(Status.UNAVAILABLE, "the peer does not answer pings")
            self._transport.abort()


def _settings(bounds: GrpcBounds) -> dict[SettingCodes | int, int]:
    return {
        SettingCodes.ENABLE_PUSH: 0,
        SettingCodes.MAX_CONCURRENT_STREAMS: bounds.calls,
        SettingCodes.INITIAL_WINDOW_SIZE: bounds.window_bytes,
    }
