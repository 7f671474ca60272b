"""Requests that wait because no replica is in service, where a pool may shrink to none.

Whoever scales the pool sees that somebody waits and starts a replica; when it takes work, everybody is sent
on at once, and its admission decides about all of them together. The clock of a request runs on meanwhile.

The room is bounded in requests and time; the router's byte budget bounds what they hold. Who finds it full,
or waits too long, is answered as if there were no room. Leaving is the structure of the code: a client that
goes away takes its request along.
"""

import asyncio
from time import monotonic

from penstock_router.replicas.replica_set import ReplicaSet

MOST_REQUESTS = 1024
AGAIN_S = 0.05
"""Pause of a request that found nobody although somebody seems to take work: the news are on their way."""


class WaitingRoom:
    """One router's. longest_s: of a request's life that it may have waited here; 0: nobody waits."""

    def __init__(self, replica_set: ReplicaSet, longest_s: float) -> None:
        self._replica_set, self._longest_s = replica_set, longest_s
        self.held = 0

    @property
    def open(self) -> bool:
        """Whether requests may wait at all."""
        return self._longest_s > 0

    async def wait(self, arrival_s: float) -> bool:
        """Until a replica takes work. False where none came in time, or there is no room to wait in."""
        left_s = arrival_s + self._longest_s - monotonic()
        if self.held >= MOST_REQUESTS or left_s <= 0:
            return False
        self.held += 1
        try:
            async with asyncio.timeout(left_s):
                if self._replica_set.ready:
                    await asyncio.sleep(AGAIN_S)
                await self._replica_set.taking_work()
        except TimeoutError:
            return False
        finally:
            self.held -= 1
        return True
