"""Requests that wait because no replica is in service.

New requests wait in a pool that may scale to zero. The autoscaler sees the number of waiting requests and
starts a replica. As soon as the replica takes requests, all are sent to it at once, and its admission decides
about them together. The wait counts against a request's deadlines.

Requests and streams whose replica was lost wait in a room of their own, in every pool: a router that was cut
off from all replicas, or stopped for a while, reaches them again within a second. New requests wait there too
while replicas are lost that took requests shortly before and no other is in service.

Waiting requests are bounded in number and in time, and the router's byte budget bounds their bytes. A request
beyond a bound is rejected as in other pools. A request whose client disconnects is dropped.
"""

import asyncio

from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.clock import monotonic

MOST_REQUESTS = 1024
"""Most requests that wait; further ones are rejected."""
RETRY_S = 0.05
"""Pause before a retry if a replica is ready but was not tried: its new snapshot may not have arrived."""


class WaitingRoom:
    """The requests of one router that wait for a first replica.

    longest_wait_s: how long after its arrival a request may wait; 0 if none may.
    most: how many may wait; `MOST_REQUESTS` by default.
    waiting: requests that wait now.
    """

    def __init__(self, replica_set: ReplicaSet, longest_wait_s: float, most: int | None = None) -> None:
        self._replica_set, self._longest_wait_s = replica_set, longest_wait_s
        self._most = MOST_REQUESTS if most is None else most
        self.waiting = 0

    @property
    def open(self) -> bool:
        """Whether requests may wait at all."""
        return self._longest_wait_s > 0

    async def wait(self, arrival_s: float) -> bool:
        """Wait until a replica takes work. Return False after a timeout, or if too many requests wait.

        arrival_s: when the request arrived, or its replica was lost.
        """
        left_s = arrival_s + self._longest_wait_s - monotonic()
        if self.waiting >= self._most or left_s <= 0:
            return False
        self.waiting += 1
        try:
            async with asyncio.timeout(left_s):
                if self._replica_set.ready:
                    await asyncio.sleep(RETRY_S)
                await self._replica_set.wait_until_ready()
        except TimeoutError:
            return False
        finally:
            self.waiting -= 1
        return True
