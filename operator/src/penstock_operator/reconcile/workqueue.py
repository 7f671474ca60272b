"""Queue of pools to reconcile, with delays and exponential backoff.

A key is in the queue at most once. One worker at a time processes it; a key that is added meanwhile is
processed again afterwards. So a burst of changes costs one reconciliation, and reconciliations of
one pool never overlap. Of several delayed additions the earliest counts. After a failure the delay doubles.
"""

import asyncio
from collections import deque
from typing import Generic, NamedTuple, TypeVar

K = TypeVar("K")

BASE_BACKOFF_S = 0.2
"""Delay before the first retry of a failed reconciliation. It doubles with each failure."""
MAX_BACKOFF_S = 30.0
"""Maximum delay before a retry."""


class _Timer(NamedTuple):
    """A delayed addition and its time, which uvloop's handle does not have if it is due immediately."""

    at_s: float
    handle: asyncio.Handle


class WorkQueue(Generic[K]):
    """A queue of distinct keys, each taken by at most one worker at a time."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._processing: set[K] = set()
        self._delayed: dict[K, _Timer] = {}
        self._failures: dict[K, int] = {}
        self._available = asyncio.Event()

    def __len__(self) -> int:
        """Number of keys that wait for a worker."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Queue a key for immediate processing."""
        if (timer := self._delayed.pop(key, None)) is not None:
            timer.handle.cancel()
        if key in self._queued:
            return
        self._queued.add(key)
        if key not in self._processing:
            self._push(key)

    def add_later(self, key: K, after_s: float) -> None:
        """Queue a key after a delay, unless it is due earlier."""
        loop = asyncio.get_running_loop()
        at_s, timer = loop.time() + after_s, self._delayed.get(key)
        if timer is not None and timer.at_s <= at_s:
            return
        if timer is not None:
            timer.handle.cancel()
        self._delayed[key] = _Timer(at_s, loop.call_at(at_s, self.add, key))

    async def take(self) -> K:
        """Wait for a key and take it. No other worker gets it before `done`."""
        while not self._ready:
            self._available.clear()
            await self._available.wait()
        key = self._ready.popleft()
        self._queued.discard(key)
        self._processing.add(key)
        return key

    def done(self, key: K) -> None:
        """Release a key."""
        self._processing.discard(key)
        if key in self._queued:
            self._push(key)

    def failed(self, key: K) -> float:
        """Queue a key again after a failure, with backoff. Returns the delay in seconds."""
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        backoff_s = min(MAX_BACKOFF_S, BASE_BACKOFF_S * 2.0 ** min(failures, 16))
        self.add_later(key, backoff_s)
        return backoff_s

    def succeeded(self, key: K) -> None:
        """Reset a key's backoff."""
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Remove a key's backoff and delayed addition."""
        self._failures.pop(key, None)
        if (timer := self._delayed.pop(key, None)) is not None:
            timer.handle.cancel()

    def close(self) -> None:
        """Cancel all delayed additions."""
        for timer in self._delayed.values():
            timer.handle.cancel()
        self._delayed.clear()

    def _push(self, key: K) -> None:
        self._ready.append(key)
        self._available.set()
