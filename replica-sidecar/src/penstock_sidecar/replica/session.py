"""One router's session: submits and cancels in, frames out.

A reader and a writer run side by side. The session ends with the first of them: the router has closed its
half, is gone, or does not read. Then its requests are cancelled, at the engine too.

gRPC sends a call's status after the frame that is being written, and no status where that write was
cancelled: the router would never learn that the session is over. So the frame gets a moment to be written.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import structlog
from penstock_proto import replica_pb2 as wire

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.frames.messages import prefixes_message
from penstock_sidecar.frames.outbox import Outbox
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.requests.replica_request import ReplicaRequest

log = structlog.get_logger()

Submit = Callable[[wire.Submit, "Session"], ReplicaRequest]
Answered = Callable[[ReplicaRequest, wire.EngineAnswer], None]
Write = Callable[[wire.ReplicaFrame], Awaitable[None]]


LAST_FRAME_S = 1.0
"""Time for the frame that is being written when a session ends."""


class ProtocolError(Exception):
    """The router broke the protocol; the message says how."""


class Session:
    """The requests of one router, and the events for it. prefixes: those that are reported to the router."""

    def __init__(
        self,
        submit: Submit,
        answered: Answered,
        snapshot: Callable[[], wire.Snapshot],
        prefixes: PrefixIndex,
        bounds: Bounds,
    ) -> None:
        self._submit, self._answered, self._prefixes = submit, answered, prefixes
        self._reported: int | None = None  # changes of cached prefixes that it has been sent; None: nothing
        self._requests: dict[int, ReplicaRequest] = {}
        self.outbox = Outbox(bounds, snapshot, lambda: len(self._requests), self._prefix_changes)

    async def run(self, frames: AsyncIterator[wire.RouterFrame], write: Write) -> None:
        """Run until the router ends it or falls behind, or `close` was called and everything is written.

        Raises ProtocolError. Afterwards `outbox.behind` is set if the router has fallen behind.
        """
        reading = asyncio.create_task(self._read(frames))
        writing = asyncio.create_task(self._write(write))
        behind = asyncio.create_task(self.outbox.behind.wait())
        parts: set[asyncio.Task[object]] = {reading, writing, behind}
        for part in parts:
            part.add_done_callback(_log_error)
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            ended = reading.done() and not reading.cancelled()
            if ended and isinstance(error := reading.exception(), ProtocolError):
                raise error
        finally:
            await self._end(writing, parts)

    def close(self) -> None:
        """End it once everything held is written."""
        self.outbox.close()

    @property
    def direct(self) -> bool:
        """Whether its router reads an answer at the engine."""
        return any([request.direct for request in self._requests.values()])

    def forget(self, request: ReplicaRequest) -> None:
        """Drop a request that has ended. Its id may be used again."""
        self._requests.pop(request.id, None)

    def _prefix_changes(self) -> wire.CachedPrefixes | None:
        """Return the changes of cached prefixes that the router has not been sent; None without any."""
        cached, before = self._prefixes.reported, self._reported
        if before == cached.count or not (self._prefixes.used or cached.count):
            return None
        self._reported = cached.count
        changes = None if before is None else cached.since(before)
        return prefixes_message(cached.all() if changes is None else changes, complete=changes is None)

    async def _read(self, frames: AsyncIterator[wire.RouterFrame]) -> None:
        async for frame in frames:
            for submit in frame.submits:
                self._take(submit)
            for answer in frame.engine_answers:
                if request := self._requests.get(answer.id):
                    self._answered(request, answer)
            for id in frame.cancels:
                if request := self._requests.get(id):  # else it has ended, and the cancel crossed its end
                    request.cancelled()

    def _take(self, submit: wire.Submit) -> None:
        if submit.id in self._requests:
            raise ProtocolError(f"submit id {submit.id} is in use")
        request = self._submit(submit, self)
        if not request.ended:
            self._requests[submit.id] = request

    async def _write(self, write: Write) -> None:
        while (frame := await self.outbox.frame()) is not None:
            await write(frame)

    async def _end(self, writing: asyncio.Task[None], parts: set[asyncio.Task[object]]) -> None:
        self.outbox.drop()
        for part in parts - {writing}:
            part.cancel()
        left = list(self._requests.values())
        for request in left:
            request.cancelled()
        await asyncio.wait({writing}, timeout=LAST_FRAME_S)
        writing.cancel()
        await asyncio.wait(parts)
        for request in left:
            await request.closed()


def _log_error(part: asyncio.Task[object]) -> None:
    """Log what ended a part of a session. As a callback: gRPC may cancel the call that awaits the parts."""
    if not part.cancelled() and (error := part.exception()) and not isinstance(error, ProtocolError):
        log.warning("session failed", error=repr(error))
