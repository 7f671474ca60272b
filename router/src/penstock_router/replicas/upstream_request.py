"""One request at one replica, as its HTTP side waits for it.

The session's reader puts what a frame brings; the request's own task takes everything that has come since it
last looked, in one piece. However many tokens a frame brings for it, a request is woken once.

What is held for a client that reads slowly is bounded, for each and, by a budget, over all. Past either bound
the request ends as `Overflowed`, and `on_overflow` is called, for the task may be stuck in writing and must
be freed from outside. What was taken is held until the next look: until then it may not have been written.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from penstock_core.domain.verdict import Admitted, BestEffort, Rejected
from penstock_proto import replica_pb2 as wire

from penstock_router.request.byte_budget import ByteBudget


@dataclass(frozen=True, slots=True)
class Lost:
    """The replica went away, or said nothing in time.

    reached: whether the request may have been begun there, which counts as a loss. Else it costs nothing to
    ask
        another replica.
    """

    replica: str
    why: str
    reached: bool = True


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The client read too slowly."""


End = wire.Finished | wire.Failed | Rejected | Lost | Overflowed


class Received(NamedTuple):
    """What has come since the last look. tokens: how many are in `data`, as the replica counts them."""

    data: bytes
    tokens: int
    end: End | None


class UpstreamRequest:
    """Filled by a session, emptied by one task.

    id: within the session.
    verdict: None until the replica has accepted; a rejection is an `end`.
    bound_bytes: most bytes held, where there is a bound.
    heard_s: when the replica last said something about it. longest_silence_s: how long it may say nothing.
    """

    __slots__ = (
        "_bound_bytes",
        "_budget",
        "_changed_since",
        "_chunks",
        "_held_bytes",
        "_on_overflow",
        "_taken_bytes",
        "_tokens",
        "_waiter",
        "end",
        "heard_s",
        "id",
        "longest_silence_s",
        "verdict",
    )

    def __init__(
        self,
        id: int,
        bound_bytes: int | None = None,
        on_overflow: Callable[[], None] = lambda: None,
    ) -> None:
        self.id = id
        self.verdict: Admitted | BestEffort | None = None
        self.end: End | None = None
        self.heard_s, self.longest_silence_s = -inf, inf
        self._bound_bytes, self._on_overflow = bound_bytes, on_overflow
        self._chunks: list[bytes] = []
        self._held_bytes = self._taken_bytes = self._tokens = 0
        self._budget: ByteBudget | None = None
        self._changed_since = False
        self._waiter: asyncio.Future[None] | None = None

    def hold_within(self, budget: ByteBudget) -> None:
        """Count output in this budget, until `release`."""
        self._budget = budget
        budget.enter(self)

    @property
    def held_bytes(self) -> int:
        """Output that has come and may not have been written."""
        return self._held_bytes + self._taken_bytes

    @property
    def streamed(self) -> bool:
        """Whether its output comes token by token."""
        return self._bound_bytes is not None

    @property
    def brought(self) -> bool:
        """Whether there is output to take."""
        return self._held_bytes > 0

    def accepted(self, verdict: Admitted | BestEffort) -> None:
        """The replica takes it."""
        self.verdict = verdict
        self._wake()

    def put(self, data: bytes, tokens: int) -> bool:
        """Output. False where it was one too many: the request has ended then."""
        held_bytes = self._held_bytes + len(data)
        if self._bound_bytes is not None and self._held_bytes and held_bytes > self._bound_bytes:
            self.finish(Overflowed())
            self._on_overflow()
            return False
        self._held_bytes = held_bytes
        self._tokens += tokens
        self._chunks.append(data)
        self._wake()
        budget = self._budget
        if budget is not None:
            budget.held_bytes += len(data)
            if budget.held_bytes > budget.bound_bytes:
                budget.relieve()
                return self._budget is not None  # else it was this one that held most
        return True

    def drop(self) -> None:
        """End it for what it holds, and let go of that."""
        self.release()
        self.finish(Overflowed())
        self._on_overflow()

    def release(self) -> None:
        """Let go of what is held, and count nothing more."""
        if self._budget is not None:
            self._budget.leave(self)
            self._budget = None
        self._chunks, self._tokens, self._held_bytes, self._taken_bytes = [], 0, 0, 0

    def finish(self, end: End) -> None:
        """Nothing comes after this. A second end changes nothing."""
        if self.end is None:
            self.end = end
            self._wake()

    def take(self) -> Received:
        """Everything that has come, and the end where it is the end."""
        chunks, tokens = self._chunks, self._tokens
        if self._budget is not None:
            self._budget.held_bytes -= self._taken_bytes
            self._taken_bytes = self._held_bytes
        self._chunks, self._tokens, self._held_bytes = [], 0, 0
        self._changed_since = False
        return Received(chunks[0] if len(chunks) == 1 else b"".join(chunks), tokens, self.end)

    async def changed(self) -> None:
        """Until something has come since the last `take` or `changed`."""
        if not self._changed_since:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._changed_since = False

    def _wake(self) -> None:
        self._changed_since = True
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
