"""One request at one replica. The session's reader adds its output, and the request's task takes it.

However many tokens a frame has, the task is woken once. While the task waits and nothing is buffered, output
bypasses it: `relay` writes to the client directly from the session's reader, and no task is woken for a
token. If the client is slower, output is buffered.

The buffer is bounded for each request and, by a budget, over all requests. Beyond either bound the request
ends as `Overflowed`, and `on_overflow` is called, because the task may be blocked in a write. While the task
waits for output it is not behind, so the request's own bound does not apply: after a stall of the network or
of this process, much output may arrive before the task runs. Output that was taken counts as buffered until
the next `take`, because it may not be written yet.
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
    """The replica was lost, or did not answer in time.

    reached: whether the replica may have begun the request. If not, trying another replica costs nothing.
    drained: whether the replica was draining.
    """

    replica: str
    why: str
    reached: bool = True
    drained: bool = False


@dataclass(frozen=True, slots=True)
class Overflowed:
    """The client read too slowly."""


Relay = Callable[[bytes, int], bool]
"""Writes output with a number of tokens to the client; returns False if it must be buffered."""

End = wire.Finished | wire.Failed | Rejected | Lost | Overflowed


class Received(NamedTuple):
    """Output since the last `take`. tokens: how many are in `data`, by the replica's count."""

    data: bytes
    tokens: int
    end: End | None


class UpstreamRequest:
    """One request at one replica.

    id: unique within the session.
    verdict: None until the replica has accepted the request; a rejection is an `end`.
    verdict_timer: ends the request if no verdict arrives in time.
    bound_bytes: most bytes buffered; None without a bound.
    last_received_s: when the replica's last message about it was received.
    longest_silence_s: longest time without a message.
    engine_fields: fields for a router that sends the request to the engine; empty if the replica sends it.
    on_end: called once, when the request has ended or is given up.
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
        """Count buffered output in this budget, until `release`."""
        self._budget = budget
        budget.enter(self)

    @property
    def held_bytes(self) -> int:
        """Bytes of output that may not have been written yet."""
        return self._held_bytes + self._taken_bytes

    @property
    def streamed(self) -> bool:
        """Whether its output arrives token by token."""
        return self._bound_bytes is not None

    @property
    def has_output(self) -> bool:
        """Whether there is output to take."""
        return self._held_bytes > 0

    def accepted(self, verdict: Admitted | BestEffort) -> None:
        """Set the replica's verdict."""
        self.verdict = verdict
        self.stop_verdict_timer()
        self._wake()

    def stop_verdict_timer(self) -> None:
        """Stop the timer of the verdict."""
        if self.verdict_timer is not None:
            self.verdict_timer.cancel()
            self.verdict_timer = None

    def put(self, data: bytes, tokens: int) -> bool:
        """Add output. Return False if the buffer is full and the request has ended."""
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
                return self._budget is not None  # False: this request held most, and was dropped
        return True

    def drop(self) -> None:
        """End the request as `Overflowed`, and release its output."""
        self.release()
        self.finish(Overflowed())
        self._on_overflow()

    def release(self) -> None:
        """Release buffered output, and leave the budget."""
        if self._budget is not None:
            self._budget.leave(self)
            self._budget = None
        self._chunks, self._tokens, self._held_bytes, self._taken_bytes = [], 0, 0, 0
        self._stop_source()

    def finish(self, end: End) -> None:
        """End the request. A second end has no effect."""
        if self.end is None:
            self.end = end
            self.stop_verdict_timer()
            self._stop_source()
            self._wake()

    def take(self) -> Received:
        """Return all output since the last `take`, and the end if the request has ended."""
        chunks, tokens = self._chunks, self._tokens
        if self._budget is not None:
            self._budget.held_bytes -= self._taken_bytes
            self._taken_bytes = self._held_bytes
        self._chunks, self._tokens, self._held_bytes = [], 0, 0
        self._changed_since = False
        return Received(chunks[0] if len(chunks) == 1 else b"".join(chunks), tokens, self.end)

    async def changed(self, relay: Relay | None = None) -> None:
        """Wait for output since the last `take` or `changed` that `relay` has not written, or for the end."""
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
        """Whether output is buffered while the task is busy."""
        return self._held_bytes > 0 and self._waiter is None

    def _stop_source(self) -> None:
        """Stop the source of output, if it is not the replica's session."""
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end()

    def _wake(self) -> None:
        self._changed_since, self._relay = True, None
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
