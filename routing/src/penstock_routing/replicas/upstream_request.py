"""One request at one replica: filled by the session's reader, emptied by the request's task.

The reader adds what a frame brings; the task takes all of it at once. However many tokens a frame has, the
task is woken once. While it waits and nothing is buffered, output bypasses it: `relay` writes to the client
directly from the session's reader, and no task is woken for a token. If the client is slower, output is
buffered.

The buffer is bounded for each request and, by a budget, over all requests. Beyond either bound the request
ends as `Overflowed`, and `on_overflow` is called, because the task may be blocked in a write. While the task
waits for output it is not behind, so its own bound does not apply: after a stall of the network, or of this
process, much output may come before the task's turn. Output that was taken counts as buffered until the next
`take`, because it may not have been written before.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from penstock_core.domain.verdict import Admitted, BestEffort, Rejected
from penstock_proto import replica_pb2 as wire

from penstock_routing.request.byte_budget import ByteBudget


@dataclass(frozen=True, slots=True)
class Lost:
    """The replica went away, or did not answer in time.

    reached: whether the request may have been begun there. If not, asking another replica costs nothing.
    drained: the replica was draining.
    """

    replica: str
    why: str
    reached: bool = True
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The client read too slowly."""


Relay = Callable[[bytes, int], bool]
"""Writes output and its number of tokens to the client; returns False where it has to be held."""

End = wire.Finished | wire.Failed | Rejected | Lost | Overflowed


class Received(NamedTuple):
    """Output since the last `take`. tokens: how many are in `data`, as the replica counts them."""

    data: bytes
    tokens: int
    end: End | None


class UpstreamRequest:
    """One request at one replica.

    id: unique within the session.
    verdict: None until the replica has accepted; a rejection is an `end`.
    verdict_timer: ends it where no verdict comes in time.
    bound_bytes: most bytes held, where there is a bound.
    last_received_s: when the replica's last message about it came. longest_silence_s: how long none may come.
    engine_fields: with which the request is sent to the engine itself; empty where the replica sends it.
    on_end: called once, when it has ended or is given up.
    """

    __slots__ = (
        "_bound_bytes",
        "_budget",
        "_changed_since",
        "_chunks",
        "_held_bytes",
        "_on_overflow",
        "_relay",
        "_taken_bytes",
        "_tokens",
        "_waiter",
        "end",
        "engine_fields",
        "id",
        "last_received_s",
        "longest_silence_s",
        "on_end",
        "verdict",
        "verdict_timer",
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
        self.verdict_timer: asyncio.TimerHandle | None = None
        self.last_received_s, self.longest_silence_s = -inf, inf
        self.engine_fields = b""
        self.on_end: Callable[[], object] | None = None
        self._bound_bytes, self._on_overflow = bound_bytes, on_overflow
        self._chunks: list[bytes] = []
        self._held_bytes = self._taken_bytes = self._tokens = 0
        self._budget: ByteBudget | None = None
        self._changed_since = False
        self._relay: Relay | None = None
        self._waiter: asyncio.Future[None] | None = None

    def use_budget(self, budget: ByteBudget) -> None:
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
    def has_output(self) -> bool:
        """Whether there is output to take."""
        return self._held_bytes > 0

    def accepted(self, verdict: Admitted | BestEffort) -> None:
        """Note the replica's verdict."""
        self.verdict = verdict
        self.stop_verdict_timer()
        self._wake()

    def stop_verdict_timer(self) -> None:
        """Wait for no verdict any more."""
        if self.verdict_timer is not None:
            self.verdict_timer.cancel()
            self.verdict_timer = None

    def put(self, data: bytes, tokens: int) -> bool:
        """Take output. Returns False where it was too much: the request has ended then."""
        relay = self._relay
        if relay is not None and relay(data, tokens):
            return True
        held_bytes = self._held_bytes + len(data)
        if self._bound_bytes is not None and held_bytes > self._bound_bytes and self._is_behind:
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
                budget.drop_largest()
                return self._budget is not None  # else it was this one that held most
        return True

    def drop(self) -> None:
        """End it because of what it holds, and forget that."""
        self.release()
        self.finish(Overflowed())
        self._on_overflow()

    def release(self) -> None:
        """Forget what is held, and count nothing more."""
        if self._budget is not None:
            self._budget.leave(self)
            self._budget = None
        self._chunks, self._tokens, self._held_bytes, self._taken_bytes = [], 0, 0, 0
        self._stop_source()

    def finish(self, end: End) -> None:
        """End it. A second end changes nothing."""
        if self.end is None:
            self.end = end
            self.stop_verdict_timer()
            self._stop_source()
            self._wake()

    def take(self) -> Received:
        """Return all output since the last `take`, and the end where it has come."""
        chunks, tokens = self._chunks, self._tokens
        if self._budget is not None:
            self._budget.held_bytes -= self._taken_bytes
            self._taken_bytes = self._held_bytes
        self._chunks, self._tokens, self._held_bytes = [], 0, 0
        self._changed_since = False
        return Received(chunks[0] if len(chunks) == 1 else b"".join(chunks), tokens, self.end)

    async def changed(self, relay: Relay | None = None) -> None:
        """Wait until something has come since the last `take` or `changed` that `relay` has not written."""
        if not self._changed_since:
            self._relay = relay
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._relay = self._waiter = None
        self._changed_since = False

    @property
    def _is_behind(self) -> bool:
        """Whether output is held that the task does not wait for."""
        return self._held_bytes > 0 and self._waiter is None

    def _stop_source(self) -> None:
        """Stop what brings it, if it is not the replica's session."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def _wake(self) -> None:
        self._changed_since, self._relay = True, None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
