"""Queue of pools to reconcile, with delays and exponential backoff.

A key is in the queue at most once. One worker at a time processes it; a key that is added meanwhile is
processed again afterwards. So a burst of changes costs one reconciliation, and reconciliations of
one pool never overlap. Of several delayed additions the earliest counts. After a failure the delay doubles.
"""

import asyncio
from collections import deque
from typing import Generic, TypeVar

K = TypeVar("K")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 30.0


class WorkQueue(Generic[K]):
    """Keys, each at most once, each in one pair of hands."""

    def __init__(self) -> None:
        self._ready: deque[K] = deque()
        self._waiting: set[K] = set()
        self._taken: set[K] = set()
        self._later: dict[K, asyncio.TimerHandle] = {}
        self._failures: dict[K, int] = {}
        self._some = asyncio.Event()

    def __len__(self) -> int:
        """Keys that wait for a worker now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Look at it as soon as can be."""
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()
        if key in self._waiting:
            return
        self._waiting.add(key)
        if key not in self._taken:
            self._offer(key)

    def add_later(self, key: K, after_s: float) -> None:
        """Look at it in a while, unless that happens before anyhow."""
        loop = asyncio.get_running_loop()
        timer = self._later.get(key)
        if timer is not None and timer.when() <= loop.time() + after_s:
            return
        if timer is not None:
            timer.cancel()
        self._later[key] = loop.call_later(after_s, self.add, key)

    async def take(self) -> K:
        """The next key; nobody else gets it before `done`."""
        while not self._ready:
            self._some.clear()
            await self._some.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._taken.add(key)
        return key

    def done(self, key: K) -> None:
        """What was taken may be taken again."""
        self._taken.discard(key)
        if key in self._waiting:
            self._offer(key)

    def failed(self, key: K) -> float:
        """The look failed: when it comes again, in seconds."""
        times = self._failures.get(key, 0)
        self._failures[key] = times + 1
        pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2.0 ** min(times, 16))
        self.add_later(key, pause_s)
        return pause_s

    def succeeded(self, key: K) -> None:
        """The look did what it had to."""
        self._failures.pop(key, None)

    def forget(self, key: K) -> None:
        """There is nothing to look at any more."""
        self._failures.pop(key, None)
        if (timer := self._later.pop(key, None)) is not None:
            timer.cancel()

    def close(self) -> None:
        """No key comes later any more."""
        for timer in self._later.values():
            timer.cancel()
        self._later.clear()

    def _offer(self, key: K) -> None:
        self._ready.append(key)
        self._some.set()
