"""Events of one session, batched into frames for its router.

A frame costs both ends as much as a dozen events, so an event may wait for others if no client is delayed
(`Urgency`). At each step the engine generates one token of every request within about a millisecond; these
share a frame. An event for which no client waits is sent with the next frame. Every frame waits for one turn
of the event loop, which takes no time on an idle loop, and collects other events under load.

Events are added directly to the frame's message, because separate messages take ten times as long.

Buffered bytes are bounded. If one request has more than half of them when the bound is reached, its engine
sends faster than its router reads: that request fails as one whose engine is lost, and its router moves it.
Otherwise the router does not read: the session ends, its requests are cancelled, and the router sees the
stream close.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from math import inf

from penstock_proto import replica_pb2 as wire
from penstock_runtime.engine.answers import ENGINE_LOST

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.frames.messages import failed_event

EVENT_BYTES = 64
"""Estimated size of an event without data."""

_ANSWER = frozenset({"output", "finished", "failed"})
"""Events of a request after its verdict."""


class Urgency(Enum):
    """How long an event may wait for others."""

    IMMEDIATE = "at once"  # a client waits for this event
    STEP = "step"  # it may wait for other events of its step, if the session has enough requests
    NONE = "none"  # no client waits for it


class Outbox:
    """Events of one session, oldest first, in frames. One reader takes the frames.

    snapshot: returns the replica's snapshot. open_requests: returns how many requests the session has.
    outpaced: called soon with the id of a request that was failed, because its output reached the bound.
    prefixes: returns changes of the cached prefixes since its last call; None without changes.
    behind: set when the bound is reached. Buffered events are then dropped, and no more are accepted.
    """

    def __init__(
        self,
        bounds: Bounds,
        snapshot: Callable[[], wire.Snapshot],
        open_requests: Callable[[], int],
        outpaced: Callable[[int], None],
        prefixes: Callable[[], wire.CachedPrefixes | None] = lambda: None,
    ) -> None:
        self._bounds, self._snapshot, self._open_requests = bounds, snapshot, open_requests
        self._outpaced, self._prefixes = outpaced, prefixes
        self._loop = asyncio.get_running_loop()
        self._full: deque[tuple[wire.ReplicaFrame, int]] = deque()  # with their sizes
        self._full_bytes = 0
        self._open, self._open_bytes = wire.ReplicaFrame(), 0
        self._due = asyncio.Event()
        self.behind = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = self._timer_at_s = inf  # delay and end of the timer
        self._sent: bytes | None = None
        self._snapshot_due = True  # a new session begins with a snapshot
        self._closed = False
        self._due.set()

    @property
    def empty(self) -> bool:
        """Whether all events have been taken."""
        return not self._full and not self._open_bytes

    @property
    def buffered_bytes(self) -> int:
        """Estimated size of the events that were not taken."""
        return self._full_bytes + self._open_bytes

    def output(self, id: int, data: bytes, tokens: int, urgency: Urgency) -> None:
        """Add output of a request."""
        if not self._closed:
            event = self._open.events.add(id=id)
            event.output.data = data
            event.output.tokens = tokens
            self._account(len(data), urgency)

    def put(self, event: wire.Event, data_bytes: int = 0, urgency: Urgency = Urgency.STEP) -> None:
        """Add a verdict or an end, which changes the load. data_bytes: size of its data."""
        if not self._closed:
            self._open.events.append(event)
            self._snapshot_due = True
            self._account(data_bytes, urgency)

    def send_changes(self) -> None:
        """Send the replica's snapshot if it has changed since the last one."""
        if self._snapshot().SerializeToString(deterministic=True) != self._sent:
            self._snapshot_due = True
            self._due.set()

    def send_within(self, within_s: float) -> None:
        """Send the replica's snapshot within this time, in a separate frame if there is no other."""
        if not self._due.is_set():
            self._snapshot_due = True
            self._schedule_within(within_s)

    def close(self) -> None:
        """Accept no more events. The reader gets the buffered ones, then None."""
        self._closed = True
        self._due.set()

    def drop(self) -> None:
        """Accept no more events, and drop the buffered ones. The reader gets None."""
        self._full.clear()
        self._full_bytes = 0
        self._open, self._open_bytes = wire.ReplicaFrame(), 0
        self._snapshot_due = False
        self.close()

    async def frame(self) -> wire.ReplicaFrame | None:
        """Wait for the next frame and return it; None after the last."""
        await self._due.wait()
        await asyncio.sleep(0)  # one turn of the event loop, to collect other events
        self._disarm()
        if self.empty and self._closed and not self._snapshot_due:
            return None
        frame = self._next()
        with_snapshot, self._snapshot_due = self._snapshot_due or self._bounds.fresh_snapshots, False
        if self.empty and not self._closed:
            self._due.clear()
        if with_snapshot:
            snapshot = self._snapshot()
            self._sent = snapshot.SerializeToString(deterministic=True)
            frame.snapshot.CopyFrom(snapshot)
        if (prefixes := self._prefixes()) is not None:
            frame.cached_prefixes.CopyFrom(prefixes)
        return frame

    def _next(self) -> wire.ReplicaFrame:
        if not self._full:
            self._close_open_frame()
        frame, size = self._full.popleft()
        self._full_bytes -= size
        return frame

    def _close_open_frame(self) -> None:
        """Close the open frame, and begin another."""
        self._full.append((self._open, self._open_bytes))
        self._full_bytes += self._open_bytes
        self._open, self._open_bytes = wire.ReplicaFrame(), 0

    def _account(self, data_bytes: int, urgency: Urgency) -> None:
        """Account for an event that was added to the open frame, and schedule the frame."""
        self._open_bytes += EVENT_BYTES + data_bytes
        if self.buffered_bytes > self._bounds.outbox_bytes:
            self._reduce()
            return
        if self._open_bytes >= self._bounds.frame_bytes:
            self._close_open_frame()
            self._due.set()
        elif not self._due.is_set():
            self._schedule(urgency)

    def _reduce(self) -> None:
        """Fail the request that has more than half of the bound; drop everything without such a request."""
        sizes = Counter[int]()
        for frame in self._frames():
            for event in frame.events:
                sizes[event.id] += len(event.output.data)
        id, size = max(sizes.items(), key=lambda item: item[1])
        if 2 * size <= self._bounds.outbox_bytes:
            self.drop()
            self.behind.set()
            return
        frames = [_without_answer(frame, id) for frame in self._frames()]
        failed = failed_event(id, wire.FAILURE_ENGINE_LOST, ENGINE_LOST.status, ENGINE_LOST.body())
        frames.append(wire.ReplicaFrame(events=[failed]))
        self._open, self._open_bytes = wire.ReplicaFrame(), 0
        self._full = deque((frame, _size(frame)) for frame in frames if frame.events)
        self._full_bytes = sum(size for _, size in self._full)
        self._due.set()
        self._loop.call_soon(self._outpaced, id)

    def _frames(self) -> list[wire.ReplicaFrame]:
        return [*(frame for frame, _ in self._full), self._open]

    def _schedule(self, urgency: Urgency) -> None:
        if urgency is Urgency.NONE:
            self._schedule_within(self._bounds.not_urgent_s)
        elif urgency is Urgency.STEP and (
            self._timer_s <= self._bounds.step_s or self._open_requests() > self._bounds.unbatched_requests
        ):
            self._schedule_within(self._bounds.step_s)
        else:
            self._due.set()

    def _schedule_within(self, wait_s: float) -> None:
        if wait_s >= self._timer_s:  # the running timer is earlier
            return
        at_s = min(self._loop.time() + wait_s, self._timer_at_s)
        self._disarm()
        self._timer_s, self._timer_at_s = wait_s, at_s
        self._timer = self._loop.call_at(
            at_s, self._due.set
        )  # uvloop's handles have no `when` if they are due

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_s, self._timer_at_s = None, inf, inf


def _without_answer(frame: wire.ReplicaFrame, id: int) -> wire.ReplicaFrame:
    """Return a frame without the output of a request, and without its end."""
    kept = [event for event in frame.events if event.id != id or event.WhichOneof("kind") not in _ANSWER]
    return wire.ReplicaFrame(events=kept)


def _size(frame: wire.ReplicaFrame) -> int:
    """Return the estimated size of a frame."""
    return sum(EVENT_BYTES + len(event.output.data) + len(event.failed.body) for event in frame.events)
