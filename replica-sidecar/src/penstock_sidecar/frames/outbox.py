"""What a session has to tell its router, gathered into frames.

A frame costs both ends as much as a dozen events in it, so an event may wait for others, as long as nobody
feels it (`Hurry`). The engine brings out one token of every request at each step, within a millisecond or so;
they travel together. What no client waits for travels with what comes next. And any frame waits for one turn
of the event loop, which is nothing when it is idle, and under load brings most of what others have ready.

Held bytes are bounded. A router that does not read until the bound is reached gets nothing more: the session
is over, what it carried is cancelled, and the router finds that out from the closed stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from enum import Enum

from penstock_proto import replica_pb2 as wire

from penstock_sidecar.bounds import Bounds

EVENT_BYTES = 64
"""What an event without data takes, about."""


class Hurry(Enum):
    """How long an event may wait for others."""

    AT_ONCE = "at once"  # a client waits for just this
    STEP = "step"  # for the rest of its step, unless so few share the session that nothing can be gained
    NONE = "none"  # nobody acts on it before what comes next


class Outbox:
    """Events of one session, oldest first. One reader takes frames; anybody puts events.

    snapshot: makes the replica's state for a frame.
    sharing: how many requests the session carries, which tells whether waiting can gain anything.
    behind: set once the bound has been reached; what was held is gone, and nothing more is taken.
    """

    def __init__(
        self, bounds: Bounds, snapshot: Callable[[], wire.Snapshot], sharing: Callable[[], int]
    ) -> None:
        self._bounds, self._snapshot, self._sharing = bounds, snapshot, sharing
        self._loop = asyncio.get_running_loop()
        self._events: deque[wire.Event] = deque()
        self._bytes = 0
        self._due = asyncio.Event()
        self.behind = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._told: bytes | None = None
        self._nudged = True  # a new session is told the replica's state first
        self._closed = False
        self._due.set()

    @property
    def empty(self) -> bool:
        """Whether everything has been taken."""
        return not self._events

    def put(self, event: wire.Event, data_bytes: int = 0, hurry: Hurry = Hurry.STEP) -> None:
        """Add an event."""
        if self._closed:
            return
        self._events.append(event)
        self._bytes += EVENT_BYTES + data_bytes
        if self._bytes > self._bounds.outbox_bytes:
            self._fall_behind()
        elif not self._due.is_set():
            self._schedule(hurry)

    def nudge(self) -> None:
        """Tell the replica's state, with or without events, if it has changed since it was last told."""
        if self._snapshot().SerializeToString(deterministic=True) != self._told:
            self._nudged = True
            self._due.set()

    def news(self, within_s: float) -> None:
        """Tell the replica's state within this time, by a frame of its own if no other goes."""
        if not self._due.is_set():
            self._nudged = True
            self._go_within(within_s)

    def close(self) -> None:
        """Take no more events; the reader gets what there is, then None."""
        self._closed = True
        self._due.set()

    def drop(self) -> None:
        """Take no more events, and forget what there is: the reader gets None."""
        self._events.clear()
        self._bytes = 0
        self._nudged = False
        self.close()

    async def frame(self) -> wire.ReplicaFrame | None:
        """The next frame, when it is due; None after the last."""
        await self._due.wait()
        await asyncio.sleep(0)  # one turn of the loop: what else is ready travels along
        self._disarm()
        if not self._events and self._closed and not self._nudged:
            return None
        events = self._take()
        self._nudged = False
        if not self._events and not self._closed:
            self._due.clear()
        snapshot = self._snapshot()
        self._told = snapshot.SerializeToString(deterministic=True)
        return wire.ReplicaFrame(events=events, snapshot=snapshot)

    def _take(self) -> list[wire.Event]:
        if self._bytes <= self._bounds.frame_bytes:
            events = list(self._events)
            self._events.clear()
            self._bytes = 0
            return events
        events, taken = [], 0
        while self._events and taken < self._bounds.frame_bytes:
            event = self._events.popleft()
            taken += EVENT_BYTES + len(event.output.data)
            events.append(event)
        self._bytes = max(self._bytes - taken, 0)
        return events

    def _fall_behind(self) -> None:
        self.drop()
        self.behind.set()

    def _schedule(self, hurry: Hurry) -> None:
        alone = hurry is Hurry.STEP and self._sharing() <= self._bounds.alone
        if hurry is Hurry.AT_ONCE or alone or self._bytes >= self._bounds.frame_bytes:
            self._due.set()
        elif hurry is Hurry.STEP:
            self._go_within(self._bounds.step_s)
        else:
            self._go_within(self._bounds.unhurried_s)

    def _go_within(self, wait_s: float) -> None:
        if self._timer is not None and self._timer.when() <= self._loop.time() + wait_s:
            return
        self._disarm()
        self._timer = self._loop.call_later(wait_s, self._due.set)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
