"""Batches the router's messages of one session, requests and cancels, into frames.

All requests that are submitted within two turns of the event loop, or while the previous frame is being
written, are sent in one frame. Two turns take no time on an idle loop; under load they reduce the number of
frames, and of plans that replicas compute. A request's elapsed time is measured when its frame is created,
so it includes this wait.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock_proto import replica_pb2 as wire

from penstock_routing.request.generation_request import GenerationRequest

FRAME_BYTES = 2**20
"""Total length of bodies from which a frame gets no more requests, to bound the size of messages."""


class Attempt(NamedTuple):
    """A request to one replica.

    backup: whether to serve it best effort, because the replicas that were tried have rejected it.
    cached_tokens: prompt tokens that the replica has probably cached.
    direct: whether this router can send it to the engine directly.
    """

    request: GenerationRequest
    hop: int
    backup: bool
    cached_tokens: int = 0
    direct: bool = False


class SessionWriter:
    """Writes messages in order. A request that is cancelled before its frame is created is never sent."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._attempts: dict[int, Attempt] = {}
        self._cancels: list[int] = []
        self._engine_answers: list[wire.EngineAnswer] = []
        self._due = asyncio.Event()

    def submit(self, id: int, attempt: Attempt) -> None:
        """Send this request with the next frame."""
        self._attempts[id] = attempt
        self._due.set()

    def answered(self, answer: wire.EngineAnswer) -> None:
        """Report the state of an answer that is read from the engine with the next frame."""
        self._engine_answers.append(answer)
        self._due.set()

    def holds(self, id: int) -> bool:
        """Return whether this request is waiting to be sent."""
        return id in self._attempts

    def cancel(self, id: int) -> None:
        """Cancel the request at the replica, or drop it if it was not sent yet."""
        if self._attempts.pop(id, None) is None:
            self._cancels.append(id)
            self._due.set()

    async def run(self, write: Callable[[wire.RouterFrame], Awaitable[None]]) -> None:
        """Write frames until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(0)  # one turn of the event loop, to collect other messages
            self._due.clear()
            while self._attempts or self._cancels or self._engine_answers:
                await write(self._frame())

    def _frame(self) -> wire.RouterFrame:
        frame = wire.RouterFrame(cancels=self._cancels, engine_answers=self._engine_answers)
        self._cancels, self._engine_answers = [], []
        now_s, size_bytes = self._now_s(), 0
        while self._attempts and size_bytes < FRAME_BYTES:
            id = next(iter(self._attempts))
            attempt = self._attempts.pop(id)
            frame.submits.add(**submit_fields(id, attempt, now_s))
            size_bytes += len(attempt.request.body)
        return frame


def submit_fields(id: int, attempt: Attempt, now_s: float) -> dict[str, Any]:
    """Return the fields of a `Submit` that is sent now."""
    request = attempt.request
    return {
        "id": id,
        "request_id": request.id,
        "endpoint": request.endpoint,
        "body": request.body,
        "tier": request.tier.name,
        "spent_s": now_s - request.arrival_s,
        "ttft_s": request.targets.ttft_s,
        "tpot_s": request.targets.tpot_s,
        "hop": attempt.hop,
        "backup": attempt.backup,
        "direct": attempt.direct,
    }
