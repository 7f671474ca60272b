"""One router's session: submits and cancels in, frames out.

A reader and a writer run concurrently. The session ends with the first of them, when the router has closed
its side, was lost, or does not read. Its requests are then cancelled, also at the engine.

A call's status cuts off a frame that is still being written, and the router loses its events. So the frame
gets some time to be written.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from penstock_proto import replica_pb2 as wire
from penstock_runtime.grpc.status import RpcError

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.frames.messages import prefixes_message
from penstock_sidecar.frames.outbox import Outbox
from penstock_sidecar.mirror.prefix_index import PrefixIndex
from penstock_sidecar.requests.replica_request import ReplicaRequest

log = structlog.get_logger()

Submit = Callable[[wire.Submit, "Session"], ReplicaRequest]
Answered = Callable[[ReplicaRequest, wire.EngineAnswer], None]
Receive = Callable[[Callable[[wire.RouterFrame], None]], Awaitable[None]]
"""Passes each frame of the router to a function until the router ends the session."""
Write = Callable[[wire.ReplicaFrame], Awaitable[None]]


LAST_FRAME_S = 1.0
"""Longest wait for the frame that is being written when a session ends."""


class ProtocolError(Exception):
    """A violation of the protocol by the router. The message describes it."""


class Session:
    """The requests of one router, and the events for it. prefixes: prefixes that are reported to it."""

    def __init__(
        self,
        submit: Submit,
        answered: Answered,
        snapshot: Callable[[], wire.Snapshot],
        prefixes: PrefixIndex,
        bounds: Bounds,
    ) -> None:
        self._submit, self._answered, self._prefixes = submit, answered, prefixes
        self._reported: int | None = (
            None  # number of changes of cached prefixes that were sent; None before the first
        )
        self._requests: dict[int, ReplicaRequest] = {}
        self.outbox = Outbox(
            bounds, snapshot, lambda: len(self._requests), self._outpaced, self._prefix_changes
        )

    async def run(self, receive: Receive, write: Write) -> None:
        """Run until the router ends the session or falls behind, or all frames are written after `close`.

        Raises ProtocolError. Afterwards `outbox.behind` is set if the router has fallen behind.
        """
        reading = asyncio.ensure_future(receive(self._take))
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
        """End the session once all buffered events are written."""
        self.outbox.close()

    @property
    def direct(self) -> bool:
        """Whether the router reads an answer from the engine."""
        return any([request.direct for request in self._requests.values()])

    def forget(self, request: ReplicaRequest) -> None:
        """Remove a request that has ended. Its id may be used again."""
        self._requests.pop(request.id, None)

    def _outpaced(self, id: int) -> None:
        """Stop a request that the outbox has failed. It may have ended already."""
        if request := self._requests.get(id):
            log.error(
                "the engine sends an answer faster than its router reads it", request=request.request_id
            )
            request.cancelled()

    def _prefix_changes(self) -> wire.CachedPrefixes | None:
        """Return the changes of cached prefixes since the last frame; None if there are none."""
        cached, before = self._prefixes.reported, self._reported
        if before == cached.count or not (self._prefixes.used or cached.count):
            return None
        self._reported = cached.count
        changes = None if before is None else cached.since(before)
        return prefixes_message(cached.all() if changes is None else changes, complete=changes is None)

    def _take(self, frame: wire.RouterFrame) -> None:
        for submit in frame.submits:
            self._begin(submit)
        for answer in frame.engine_answers:
            if request := self._requests.get(answer.id):
                self._answered(request, answer)
        for id in frame.cancels:
            if request := self._requests.get(id):  # otherwise it ended before the cancel arrived
                request.cancelled()

    def _begin(self, submit: wire.Submit) -> None:
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
    """Log the error of a session's task. As a callback, because what awaits the task may be cancelled."""
    expected = (ProtocolError, RpcError)  # the router breaks the protocol, or is lost
    if not part.cancelled() and (error := part.exception()) and not isinstance(error, expected):
        log.warning("session failed", error=repr(error))
