"""HTTP connections without sockets: the test is the client and observes the transport."""

import asyncio
import re
from typing import NamedTuple

from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_connection.protocol import HttpProtocol
from penstock_runtime.http_connection.server_state import ServerState
from penstock_runtime.http_request import App, HttpRequest


class Wire(asyncio.Transport):
    """A transport. Once it is closed it raises at a write, as uvloop's does.

    waiting_bytes: written, and not taken by the client; a test says how many.
    """

    def __init__(self, client: str = "127.0.0.1") -> None:
        super().__init__({"peername": (client, 4711)})
        self.written, self.waiting_bytes = b"", 0
        self.closed = self.aborted = self.ended = self.reading_paused = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self.closed:
            raise RuntimeError("the handler is closed")
        self.written += data

    def get_write_buffer_size(self) -> int:
        return self.waiting_bytes

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """The test sets when it is full."""

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.reading_paused = True

    def resume_reading(self) -> None:
        self.reading_paused = False

    @property
    def statuses(self) -> list[int]:
        """Of all responses so far."""
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", self.written)]


class Response(NamedTuple):
    """One response; names of headers as they were written."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes


def connected(
    app: App, bounds: HttpBounds | None = None, wire: Wire | None = None
) -> tuple[ServerState, HttpProtocol, Wire]:
    """A new connection to an app."""
    server, wire = ServerState(app, bounds or HttpBounds()), wire or Wire()
    connection = HttpProtocol(server)
    connection.connection_made(wire)
    return server, connection, wire


async def asked(app: App, head: bytes, body: bytes = b"", client: str = "127.0.0.1") -> Response:
    """The response to one request. head: without its last line break, like `GET / HTTP/1.1`."""
    server, connection, wire = connected(app, wire=Wire(client))
    length = b"\r\ncontent-length: %d" % len(body) if body else b""
    connection.data_received(head + length + b"\r\n\r\n" + body)
    while server.tasks:
        await asyncio.wait(server.tasks)
    connection.connection_lost(None)
    return read(wire.written)


def read(written: bytes) -> Response:
    """Return the first response that was written. Its body is not decoded."""
    head, _, body = written.partition(b"\r\n\r\n")
    first, *lines = head.split(b"\r\n")
    headers = {name: value for name, _, value in (line.partition(b": ") for line in lines)}
    return Response(int(first.split()[1]), headers, body)


def request_in_hand(head: bytes = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n") -> HttpRequest:
    """A request that no app answers: a test does."""
    begun = list[HttpRequest]()

    class ByHand(ServerState):
        def answer(self, request: HttpRequest) -> None:
            begun.append(request)

    connection = HttpProtocol(ByHand(_none, HttpBounds()))
    connection.connection_made(Wire())
    connection.data_received(head)
    return begun[0]


async def _none(request: HttpRequest) -> None:
    raise AssertionError
