"""One gateway's request that has reached the engine's own port, where it waits for the sidecar's decision.

To the application it is an `HttpRequest` like any other, whose connection is this object: a response is sent
as a `Reply`. The answer of an accepted request is written by the engine instead, which reports its progress.
"""

import asyncio
from collections.abc import Callable

from penstock_proto.engine_calls import Call, FromSidecar, Header, Proceed, Progress, Reply, Report
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import HttpRequest

MOST_SPENT_S = 60.0
"""Longest believed time between a request's last byte at the engine and its call here."""

_OWN = frozenset({b"date", b"connection", b"transfer-encoding"})
"""Headers of this end's framing. The engine's server writes its own."""


class EngineCall:
    """A request at the engine's port.

    http: the request. read_s: when the engine had read it.
    on_report: called with each report about an accepted request.
    """

    def __init__(self, call: Call, send: Callable[[FromSidecar], None]) -> None:
        self._id, self._send = call.id, send
        self._body_bytes = len(call.body.rstrip())
        self._response = _Response()
        self.transport: asyncio.Transport = self._response
        self.write_paused = self.closing = False
        self.client_host, self.date_line = "engine", b"date: none\r\n"
        self.read_s = min(max(call.read_s, monotonic() - MOST_SPENT_S), monotonic())
        self.on_report: Callable[[Report], None] | None = None
        self.http = HttpRequest(
            self, call.method, call.path, call.headers, version="1.1", keep_alive=True, expects_100=False
        )
        self.http.feed(call.body)
        self.http.complete()

    def proceed(self, body: bytes, request_id: str, headers: list[Header]) -> None:
        """Let the engine serve the request. body: the client's body with additions at its end."""
        self._send(Proceed(self._id, body[self._body_bytes - 1 :], request_id, headers))

    def completed(self) -> None:
        """Record that the engine has written the whole answer."""
        self.http.started = self.http.ended = True

    def take(self, report: Report) -> None:
        """Take a report of the engine."""
        if report.progress is Progress.GONE:
            self.http.lost()
        elif self.on_report is not None:
            self.on_report(report)

    def lost(self) -> None:
        """End the request, because the engine's server is lost."""
        if self.on_report is not None:
            self.on_report(Report(self._id, Progress.CUT))
        self.http.lost()

    async def writable(self) -> None:
        """Do nothing: a response is sent at once."""

    def pause_reading(self) -> None:
        """Do nothing: the body has arrived."""

    def resume_reading(self) -> None:
        """Do nothing: the body has arrived."""

    def break_slow(self) -> None:
        """Do nothing: the engine's server writes to the client."""

    def answered(self, request: HttpRequest) -> None:
        """Send the response, which is complete."""
        status, headers, body = self._response.parsed()
        self._send(Reply(self._id, status, headers, body))


class _Response(asyncio.Transport):
    """Collects the bytes of a response."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._parts.append(bytes(data))

    def parsed(self) -> tuple[int, list[Header], bytes]:
        """Return status, headers and body."""
        head, _, body = b"".join(self._parts).partition(b"\r\n\r\n")
        line, *lines = head.split(b"\r\n")
        headers = [(name, value) for name, _, value in (each.partition(b": ") for each in lines)]
        return int(line.split(b" ")[1]), [pair for pair in headers if pair[0] not in _OWN], body
