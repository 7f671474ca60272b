"""What a session has to tell its replica: requests and cancels, gathered into frames.

Whatever is asked for within two turns of the event loop, or while the last frame is being written, travels
together. Two turns are nothing when the loop is idle; under load they make frames few, and the plans that
replicas make for them. What a request's budgets have lost is measured when its frame is made, so waiting here
is counted.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from penstock_core.domain.slo import Targets
from penstock_proto import replica_pb2 as wire

FRAME_BYTES = 2**20
"""A frame takes no more requests once their bodies are this long, so that a message has a bound."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as every replica that is asked gets it.

    arrival_s: when it had been read, on the event loop's clock.
    targets: the request's own TTFT and TPOT, in place of its tier's; None where it brought none.
    """

    request_id: str
    endpoint: "wire.Endpoint.ValueType"
    body: bytes
    tier: str
    arrival_s: float
    targets: Targets = Targets()


@dataclass(frozen=True, slots=True)
class Attempt:
    """A submission at one replica."""

    submission: Submission
    hop: int
    backup: bool


class SessionWriter:
    """Things to send, in order. Requests that nobody waits for any more are never sent."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._attempts: dict[int, Attempt] = {}
        self._cancels: list[int] = []
        self._due = asyncio.Event()

    def submit(self, id: int, attempt: Attempt) -> None:
        """Send this request with the next frame."""
        self._attempts[id] = attempt
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
            while self._attempts or self._cancels:
                await write(self._frame())

    def _frame(self) -> wire.RouterFrame:
        frame = wire.RouterFrame(cancels=self._cancels)
        self._cancels = []
        now_s, size_bytes = self._now_s(), 0
        while self._attempts and size_bytes < FRAME_BYTES:
            id = next(iter(self._attempts))
            attempt = self._attempts.pop(id)
            frame.submits.append(_message(id, attempt, now_s))
            size_bytes += len(attempt.submission.body)
        return frame


def _message(id: int, attempt: Attempt, now_s: float) -> wire.Submit:
    asked = attempt.submission
    return wire.Submit(
        id=id,
        request_id=asked.request_id,
        endpoint=asked.endpoint,
        body=asked.body,
        tier=asked.tier,
        spent_s=now_s - asked.arrival_s,
        ttft_s=asked.targets.ttft_s,
        tpot_s=asked.targets.tpot_s,
        hop=attempt.hop,
        backup=attempt.backup,
    )
