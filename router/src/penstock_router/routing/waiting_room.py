"""Requests that wait because no replica is in service, in a pool that may scale to zero.

The autoscaler sees that requests wait and starts a replica; when it takes requests, all are sent at once, and
its admission decides on them together. A request's clock runs meanwhile.

Waiting requests are bounded in number and in time, and the router's byte budget bounds their bytes. A request
beyond a bound is answered as if there were no waiting. A request whose client disconnects is dropped.
"""

import asyncio

from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.clock import monotonic

MOST_REQUESTS = 1024
"""Most requests that wait; further ones are rejected."""
RETRY_S = 0.05
"""Pause of a request that no replica took although one seems to take work: its snapshot is on the way."""


class WaitingRoom:
    """The requests of one router that wait for a first replica.

    longest_s: how long after its arrival a request may wait; 0: none waits. held: requests that wait now.
    """

    def __init__(self, replica_set: ReplicaSet, longest_s: float) -> None:
        self._replica_set, self._longest_s = replica_set, longest_s
        self.held = 0

    @property
    def open(self) -> bool:
        """Whether requests may wait at all."""
        return self._longest_s > 0

    async def wait(self, arrival_s: float) -> bool:
        """Wait until a replica takes work. Return False where none came in time, or there is no room."""
        left_s = arrival_s + self._longest_s - monotonic()
        if self.held >= MOST_REQUESTS or left_s <= 0:
            return False
        self.held += 1
        try:
            async with asyncio.timeout(left_s):
                if self._replica_set.ready:
                    await asyncio.sleep(RETRY_S)
                await self._replica_set.wait_until_ready()
        except TimeoutError:
            return False
        finally:
            self.held -= 1
        return True
