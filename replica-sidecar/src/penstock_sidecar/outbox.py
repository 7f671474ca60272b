"""What a session has to tell its router, gathered into frames.

The engine brings out one token of every request at each step, within a millisecond or so. Output waits that
long for the rest of its step, and they travel as one frame with one snapshot; where so few share a session
that nothing can be gained, it does not wait. Verdicts and endings go at once: clients wait for them.

Held bytes are bounded. A router that does not read until the bound is reached gets nothing more: the session
is over, what it carried is cancelled, and the router finds that out from the closed stream.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from penstock_proto import replica_pb2 as wire

from penstock_sidecar.bounds import Bounds

EVENT_BYTES = 64
"""What an event without data takes, about."""


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

    def put(self, event: wire.Event, data_bytes: int = 0, at_once: bool = False) -> None:
        """Add an event. at_once: a client waits for it, so its frame goes as soon as it can."""
        if self._closed:
            return
        self._events.append(event)
        self._bytes += EVENT_BYTES + data_bytes
        if self._bytes > self._bounds.outbox_bytes:
            self._fall_behind()
        elif at_once or self._bytes >= self._bounds.frame_bytes:
            self._due.set()
        elif self._timer is None and not self._due.is_set():
            self._wait_for_others()

    def nudge(self) -> None:
        """Tell the replica's state, with or without events, if it has changed since it was last told."""
        if self._snapshot().SerializeToString(deterministic=True) != self._told:
            self._nudged = True
            self._due.set()

    def close(self) -> None:
        """Take no more events; the reader gets what there is, then None."""
        self._closed = True
        self._due.set()

    async def frame(self) -> wire.ReplicaFrame | None:
        """The next frame, when it is due; None after the last."""
        await self._due.wait()
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
        self._events.clear()
        self._bytes = 0
        self.close()
        self.behind.set()

    def _wait_for_others(self) -> None:
        if self._sharing() <= self._bounds.alone:
            self._due.set()
        else:
            self._timer = self._loop.call_later(self._bounds.coalesce_s, self._due.set)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
