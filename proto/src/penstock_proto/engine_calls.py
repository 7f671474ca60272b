"""Messages between an engine that gateways reach and its sidecar, on a local Unix stream socket.

    gateway ─request─▶ engine ─Call───────▶ sidecar
                       engine ◀─Proceed──── sidecar     accepted: serve it with these fields
                       engine ─Progress───▶ sidecar     it has begun, it is complete, it has failed
                       engine ◀─Reply────── sidecar     otherwise: this is the response

The engine asks about every request that reaches its port, before it serves it. `Proceed` contains a ticket,
so it is a secret. A `Reply` may follow `Proceed`: a replica that drains returns requests that have not begun,
and an answer that has begun ends with it as an error event. After a request's end messages about it are
ignored. The end of the connection ends all of its requests at the sidecar; the engine completes those that
were accepted.

Each message is msgpack, preceded by its length. Fields that a reader does not know are ignored, and missing
ones have their defaults, so either side may be newer. Times are readings of the machine's monotonic clock,
which the two share.
"""

import struct
from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

Header = tuple[bytes, bytes]

DECIDED = "x-penstock-decided"
"""Request header of sidecars and routers, whose requests were decided before. An engine does not ask about
them. It proves nothing: without a valid ticket the request is best effort. Gateways remove it."""

REJECTED = b"x-penstock-rejected"
"""Response header after which a gateway tries the next replica."""

LONGEST_BYTES = 72 << 20
"""Longest message. The sidecar bounds bodies below it, by the pool."""

_LENGTH = struct.Struct(">I")


class BrokenFrame(Exception):
    """Bytes that are no message. The connection cannot continue."""


class Call(msgspec.Struct, tag="call", frozen=True, gc=False):
    """A request that has reached the engine. id: unique on the connection.

    path: decoded, without the query. headers: names in lower case. read_s: when its body was complete.
    """

    id: int
    method: str
    path: str
    headers: list[Header]
    body: bytes
    read_s: float


class Progress(StrEnum):
    """State of an accepted request at the engine."""

    BEGUN = "begun"  # the first part was written; sent again when the thinking has ended
    WHOLE = "whole"  # the whole answer was written
    REFUSED = "refused"  # the engine answered with an error status; it waits for the sidecar's `Reply`
    CUT = "cut"  # the engine has ended an answer before it was complete
    GONE = "gone"  # the client has disconnected


class Report(msgspec.Struct, tag="report", frozen=True, gc=False, omit_defaults=True):
    """How far an accepted request is.

    tokens: tokens of the answer, counted in its stream. thinking_tokens: those before the answer proper.
    token_times_s: when each of them was written; empty for an answer that is not streamed.
    prompt_tokens, completion_tokens, cached_tokens: the engine's own counts; None if it has not written them.
    status, body: the engine's error.
    """

    id: int
    progress: Progress
    tokens: int = 0
    thinking_tokens: int = 0
    token_times_s: list[float] = []
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    status: int = 0
    body: bytes = b""


class Proceed(msgspec.Struct, tag="proceed", frozen=True, gc=False):
    """The request is accepted.

    body_end: JSON in place of the body's last brace, with a ticket.
    request_id: the engine's id of the request. headers: headers of the response.
    """

    id: int
    body_end: bytes
    request_id: str
    headers: list[Header]


class Reply(msgspec.Struct, tag="reply", frozen=True, gc=False):
    """A complete response in place of the engine's."""

    id: int
    status: int
    headers: list[Header]
    body: bytes

    @property
    def hops(self) -> bool:
        """Whether the gateway tries the next replica after it. It is for requests that have not begun."""
        return any(name == REJECTED for name, _ in self.headers)


def decided_body(body: bytes, proceed: Proceed) -> bytes:
    """Return the body that the engine serves."""
    return body.rstrip()[:-1] + proceed.body_end


Message = TypeVar("Message")
FromEngine = Call | Report
FromSidecar = Proceed | Reply

_encoder = msgspec.msgpack.Encoder()


def framed(message: FromEngine | FromSidecar) -> bytes:
    """Return a message with its length."""
    encoded = _encoder.encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


class FrameReader(Generic[Message]):
    """Splits the bytes of a connection into messages. kind: the messages that the peer sends."""

    def __init__(self, kind: Any) -> None:
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(kind)
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[Message]:
        """Return the messages that are complete. Raises BrokenFrame."""
        rest, begin, messages = self._rest, 0, list[Message]()
        rest += data
        while len(rest) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(rest, begin)
            if length > LONGEST_BYTES:
                raise BrokenFrame(f"a message of {length} bytes")
            end = begin + _LENGTH.size + length
            if len(rest) < end:
                break
            try:
                messages.append(self._decoder.decode(rest[begin + _LENGTH.size : end]))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise BrokenFrame(str(error)) from None
            begin = end
        del rest[:begin]
        return messages
