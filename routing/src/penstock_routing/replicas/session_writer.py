"""Batches the router's messages of one session, requests and cancels, into frames.

All requests that are submitted within two turns of the event loop, or while the previous frame is being
written, are sent in one frame. Two turns take no time on an idle loop; under load they reduce the number of
frames, and of plans that replicas compute. A request's elapsed time is measured when its frame is made, so
this wait is included.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from penstock_proto import replica_pb2 as wire

from penstock_routing.request.generation_request import GenerationRequest

FRAME_BYTES = 2**20
"""A frame takes no more requests once their bodies are this long, so that a message has a bound."""


class Attempt(NamedTuple):
    """A request to one replica.

    backup: the replicas tried have rejected it; serve it best effort. cached_tokens: of its prompt, that the
    replica is expected to have cached. direct: whether this router can send it to the engine itself.
    """

    request: GenerationRequest
    hop: int
    backup: bool
    cached_tokens: int = 0
    direct: bool = False


class SessionWriter:
    """Messages to send, in order. A request that is cancelled before its frame is never sent."""

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
        """Tell the replica about an answer that is read at its engine."""
        self._engine_answers.append(answer)
        self._due.set()

    def holds(self, id: int) -> bool:
        """Return whether this request has not been sent yet."""
        return id in self._attempts

    def cancel(self, id: int) -> None:
        """Take the request back."""
        if self._attempts.pop(id, None) is None:
            self._cancels.append(id)
            self._due.set()

    async def run(self, write: Callable[[wire.RouterFrame], Awaitable[None]]) -> None:
        """Write frames until cancelled."""
        while True:
            await self._due.wait()
            await asyncio.sleep(0)  # one turn of the loop: what else is ready travels along
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
