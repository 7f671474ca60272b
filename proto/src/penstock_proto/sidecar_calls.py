"""The engine's end of the socket on which it asks its sidecar about requests (`engine_calls`).

    calls = SidecarCalls(path)            # and calls.run() as a task
    call = calls.begin(method, path, headers, body)
    decision = await call.decision()      # Proceed: serve the request; Reply: answer with it
    call.wrote(data)                      # for each part of a streamed answer
    call.stream_ended()

The sidecar binds the socket. The engine connects whenever it is not connected, so the two may start and
restart in any order; meanwhile gateways try other replicas. Requests that were accepted before a sidecar is
lost are served to their end.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, cast

from penstock_proto.engine_calls import (
    BrokenFrame,
    Call,
    FrameReader,
    FromSidecar,
    Header,
    Progress,
    Reply,
    Report,
    framed,
)
from penstock_proto.sse import EngineUsage, TokenCount, usage_of_body

RECONNECT_S = 0.1
"""Time between attempts to connect."""

DECISION_S = 10.0
"""Longest wait for a decision. A sidecar takes milliseconds; a process that is stopped takes any time."""

UNSENT_BYTES = 64 << 20
"""Bytes that the sidecar has not read, above which it counts as away."""


class SidecarAway(Exception):
    """The sidecar is not running, or does not read."""


class SidecarCall:
    """One request about which the sidecar is asked, and the progress of its answer.

    decided: the sidecar's decision; SidecarAway if the sidecar is lost before.
    on_reply: called when a `Reply` follows after `Proceed`. reply: that message.
    """

    def __init__(
        self,
        id: int,
        send: Callable[[Report], None],
        forget: Callable[[int], object],
        clock: Callable[[], float],
    ) -> None:
        self._id, self._send, self._forget, self._clock = id, send, forget, clock
        self.decided: asyncio.Future[FromSidecar] = asyncio.get_running_loop().create_future()
        self._replied: asyncio.Future[Reply | None] | None = None
        self._count, self._times_s = TokenCount(), list[float]()
        self._begun = self._ended = False
        self._thinks = True
        self.on_reply: Callable[[], object] | None = None
        self.reply: Reply | None = None

    async def decision(self, left: asyncio.Future[Any] | None = None) -> FromSidecar | None:
        """Return the sidecar's decision; None if the client has `left` before. Raises SidecarAway."""
        waited: set[asyncio.Future[Any]] = {self.decided} if left is None else {self.decided, left}
        await asyncio.wait(waited, timeout=DECISION_S, return_when=asyncio.FIRST_COMPLETED)
        if self.decided.done():
            return self.decided.result()
        if left is not None and left.done():
            return None
        raise SidecarAway

    def wrote(self, data: bytes) -> None:
        """Report a part of a streamed answer that was written. Only the first part sends a message."""
        tokens = self._count.feed(data)
        if tokens:
            self._times_s.extend([self._clock()] * tokens)
        if not self._begun:
            self._begun = True
            self._report(Progress.BEGUN)
        if self._thinks and self._count.thinking_tokens:
            self._thinks = False
            self._report(Progress.BEGUN, thinking_tokens=self._count.thinking_tokens)

    def stream_ended(self) -> None:
        """Report the end of a streamed answer."""
        counted = self._count
        if counted.done or counted.finished:
            self._whole(counted.tokens, counted.usage)
        else:
            self._end(Report(self._id, Progress.CUT))

    def answered(self, body: bytes) -> None:
        """Report an answer that was written in one piece."""
        usage = usage_of_body(body)
        self._whole(usage.completion_tokens if usage else 0, usage)

    def cut(self) -> None:
        """Report an answer that the engine has left incomplete."""
        self._end(Report(self._id, Progress.CUT))

    def client_gone(self) -> None:
        """Report that the client has disconnected."""
        self._end(Report(self._id, Progress.GONE))

    async def refused(self, status: int, body: bytes) -> Reply | None:
        """Report an error of the engine. Return the response; None if the sidecar is lost."""
        if self.reply is None and not self._ended:
            self._replied = asyncio.get_running_loop().create_future()
            self._send(Report(self._id, Progress.REFUSED, status=status, body=body))
            return await self._replied
        return self.reply

    def take(self, message: FromSidecar) -> None:
        """Take a message of the sidecar."""
        if isinstance(message, Reply):
            self._close()
            self.reply = message
        if not self.decided.done():
            self.decided.set_result(message)
        elif self._replied is not None and not self._replied.done():
            self._replied.set_result(self.reply)
        elif self.on_reply is not None:
            self.on_reply()

    def sidecar_lost(self) -> None:
        """Serve the request to its end without the sidecar, if it was accepted."""
        self._close()
        if not self.decided.done():
            self.decided.set_exception(SidecarAway())
            self.decided.exception()  # it may have no reader
        if self._replied is not None and not self._replied.done():
            self._replied.set_result(None)

    def _whole(self, tokens: int, usage: EngineUsage | None) -> None:
        counts = (None, None, None) if usage is None else (
            usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens
        )  # fmt: skip
        times_s = self._times_s
        self._end(Report(self._id, Progress.WHOLE, tokens, self._count.thinking_tokens, times_s, *counts))

    def _report(self, progress: Progress, thinking_tokens: int = 0) -> None:
        if not self._ended:
            self._send(Report(self._id, progress, thinking_tokens=thinking_tokens))

    def _end(self, report: Report) -> None:
        if not self._ended:
            self._send(report)
            self._close()

    def _close(self) -> None:
        self._ended = True
        self._forget(self._id)


class SidecarCalls:
    """An engine's connection to its sidecar. clock: the machine's monotonic clock."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock, self._ids = str(path), clock, count(1)
        self._open: dict[int, SidecarCall] = {}
        self._transport: asyncio.WriteTransport | None = None

    async def run(self) -> None:
        """Stay connected until cancelled."""
        while True:
            with contextlib.suppress(OSError):
                await self._connect()
            await asyncio.sleep(RECONNECT_S)

    @property
    def connected(self) -> bool:
        """Whether the sidecar can be asked."""
        return self._transport is not None and not self._transport.is_closing()

    def begin(self, method: str, path: str, headers: list[Header], body: bytes) -> SidecarCall:
        """Ask about a request. Raises SidecarAway."""
        transport = self._transport
        if transport is None or transport.is_closing() or transport.get_write_buffer_size() > UNSENT_BYTES:
            raise SidecarAway
        id, now_s = next(self._ids), self._clock()
        call = SidecarCall(id, self._send, lambda id: self._open.pop(id, None), self._clock)
        self._open[id] = call
        transport.write(framed(Call(id, method, path, headers, body, now_s)))
        return call

    async def _connect(self) -> None:
        """Connect, and use the connection until it is lost. Raises OSError."""
        loop = asyncio.get_running_loop()
        connection = _Connection(self._take, loop.create_future())
        await loop.create_unix_connection(lambda: connection, self._path)
        self._transport = transport = connection.transport
        try:
            await connection.lost
        finally:
            self._transport = None
            if transport is not None:
                transport.abort()
            self._lose_all()

    def _send(self, report: Report) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(framed(report))

    def _take(self, message: FromSidecar) -> None:
        call = self._open.get(message.id)
        if call is not None:
            call.take(message)

    def _lose_all(self) -> None:
        calls, self._open = list(self._open.values()), {}
        for call in calls:
            call.sidecar_lost()


class _Connection(asyncio.Protocol):
    """The protocol of one connection. lost: set when it has ended."""

    def __init__(self, take: Callable[[FromSidecar], None], lost: asyncio.Future[None]) -> None:
        self._take, self.lost = take, lost
        self._reader = FrameReader[FromSidecar](FromSidecar)
        self.transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by its class

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._reader.feed(data)
        except BrokenFrame:
            self.connection_lost(None)
            return
        for message in messages:
            self._take(message)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
