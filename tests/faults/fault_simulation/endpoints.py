"""The pool's endpoints as a cluster's API server has them, and routers' watches of them."""

import asyncio
from collections.abc import AsyncIterator, Callable

from penstock_routing.discovery.endpoints import Condition, Endpoint, Endpoints


class Cluster:
    """Endpoints by replica name. version: grows with every change."""

    def __init__(self) -> None:
        self.endpoints: dict[str, Endpoint] = {}
        self.version = 0
        self._changed = asyncio.Event()

    def publish(self, replica: str, address: str, condition: Condition = Condition.IN_SERVICE) -> None:
        """Add an endpoint, or change it."""
        self.endpoints[replica] = Endpoint(address, condition)
        self._note()

    def withdraw(self, replica: str) -> None:
        """Remove an endpoint."""
        self.endpoints.pop(replica, None)
        self._note()

    def _note(self) -> None:
        self.version += 1
        self._changed.set()
        self._changed = asyncio.Event()

    async def changed_since(self, version: int) -> None:
        """Wait until there is a later version than this."""
        while self.version == version:
            await self._changed.wait()


class EndpointWatch:
    """One router's source of endpoints. late_s: returns how long each version takes to arrive."""

    connected = True
    malformed = 0

    def __init__(self, cluster: Cluster, late_s: Callable[[], float]) -> None:
        self._cluster, self._late_s = cluster, late_s

    async def sets(self) -> AsyncIterator[Endpoints]:
        """Yield the present set, then each later one."""
        seen = -1
        while True:
            await self._cluster.changed_since(seen)
            await asyncio.sleep(self._late_s())
            seen = self._cluster.version
            yield dict(self._cluster.endpoints)
