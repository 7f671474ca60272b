"""The replicas of the pool, each with its link, following a source of replica sets.

A replica that leaves the set gets no more requests and finishes those that it has; then its link is closed. A
replica whose address changes gets a new link. A replica that is not ready or terminating keeps its link and
gets no new requests. No new link is created to a terminating replica.
"""

import asyncio
from collections.abc import Callable
from math import inf
from random import Random

from penstock_core.routing.outlier_detection import panics
from penstock_core.routing.replica_load import ReplicaLoad
from penstock_core.routing.retry_budget import RetryBudget
from penstock_core.timing.time_model import TimeModel
from penstock_runtime.clock import monotonic

from penstock_routing.discovery.endpoints import Condition, Endpoint, Endpoints, Source
from penstock_routing.replicas.cached_prefixes import CachedPrefixes
from penstock_routing.replicas.link_state import NO_SESSION, NOT_LOST, LinkState
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.replica_link import ReplicaLink

MakeLink = Callable[[str, str, Callable[[], None]], ReplicaLink]
"""Creates a link from a replica's name, its address, and a callback for changes of its state."""


class ReplicaSet:
    """Links by replica name.

    known: whether the source has yielded a set, even an empty one.
    random: spreads retries. prefixes: prefixes that the replicas have cached.
    """

    def __init__(self, make_link: MakeLink, random: Random | None = None) -> None:
        self._make_link = make_link
        self.random = random or Random()
        self.prefixes = CachedPrefixes()
        self._budget = RetryBudget()
        self._links: dict[str, ReplicaLink] = {}
        self._ready: list[ReplicaLink] = []  # those that take requests
        self._lost_s: dict[str, float] = {}  # when replicas were lost that may come back
        self._tasks: dict[ReplicaLink, asyncio.Task[None]] = {}
        self._source: Source | None = None
        self._ready_event = asyncio.Event()
        self.known = False

    def __getitem__(self, name: str) -> ReplicaLink:
        return self._links[name]

    @property
    def links(self) -> list[ReplicaLink]:
        """All links, in the order of their names."""
        return list(self._links.values())

    @property
    def time_model(self) -> TimeModel | None:
        """The time model of the first replica, by name, that has sent one."""
        for link in self._links.values():
            if link.description.time_model is not None:
                return link.description.time_model
        return None

    def placed_by_peer(self, name: str, placed: PeerLoad) -> None:
        """Add requests that another router has sent to a replica."""
        if (link := self._links.get(name)) is not None:
            link.peers.add(placed, monotonic())

    def loads(self) -> list[ReplicaLoad]:
        """Return the loads of replicas that take requests. Ejected ones are included if too many are."""
        in_service = ready = self._ready
        if any([link.ejection.ejected for link in ready]):
            now_s = monotonic()
            in_service = [link for link in ready if link.ejection.takes(now_s)]
        return [link.load for link in (ready if panics(len(in_service), len(ready)) else in_service)]

    def http_endpoints(self) -> dict[str, str]:
        """Return the `host:port` at which gateways reach replicas over HTTP, by name, if they can."""
        endpoints = {name: link.description.http_endpoint for name, link in self._links.items()}
        return {name: endpoint for name, endpoint in endpoints.items() if endpoint is not None}

    def arrived(self) -> None:
        """Count a new request for the retry budget."""
        self._budget = self._budget.arrived()

    def take_replay(self) -> bool:
        """Take a replay out of the retry budget. Return False if none is left."""
        budget = self._budget.replayed()
        self._budget = self._budget if budget is None else budget
        return budget is not None

    @property
    def replays_left(self) -> float:
        """Replays that the retry budget has left."""
        return self._budget.left

    @property
    def ready(self) -> bool:
        """Whether any replica takes requests."""
        return bool(self._ready)

    @property
    def lost_s(self) -> float:
        """When a replica was last lost while it took requests; -inf if all have come back or left the set.

        A replica that drains, or that has never taken requests, is not lost.
        """
        return max(self._lost_s.values(), default=-inf)

    async def wait_until_ready(self) -> None:
        """Wait until any replica takes requests."""
        await self._ready_event.wait()

    @property
    def connected(self) -> bool:
        """Whether a change of the set would be noticed now."""
        return self._source is not None and self._source.connected

    @property
    def malformed(self) -> int:
        """Number of objects of the source that were malformed."""
        return 0 if self._source is None else self._source.malformed

    async def follow(self, source: Source) -> None:
        """Follow the source until cancelled, then close every link."""
        self._source = source
        try:
            async with asyncio.TaskGroup() as group:
                async for replicas in source.sets():
                    self._apply(replicas, group)
                    self.known = True
                    self._changed()
        finally:
            self._links, self._ready = {}, []
            self._tasks.clear()

    def _apply(self, replicas: Endpoints, group: asyncio.TaskGroup) -> None:
        links = dict(self._links)  # other threads may be reading these
        for name, link in self._links.items():
            if name not in replicas or replicas[name].address != link.address:
                del links[name]
                group.create_task(_retire(link, self._tasks.pop(link)))
        for name, endpoint in replicas.items():
            if name in links:
                links[name].set_condition(endpoint.condition)
            elif endpoint.condition is not Condition.TERMINATING:
                links[name] = self._join(name, endpoint, group)
        self._links = dict(sorted(links.items()))

    def _changed(self) -> None:
        """Update the replicas that take requests, and the lost ones. Wake requests that wait for one."""
        self._update_lost()
        self._ready = [link for link in self._links.values() if link.state is LinkState.READY]
        if self.ready:
            self._ready_event.set()
        else:
            self._ready_event.clear()

    def _update_lost(self) -> None:
        states, now_s = {name: link.state for name, link in self._links.items()}, monotonic()
        lost = [link.name for link in self._ready if states.get(link.name) in NO_SESSION]
        known = self._lost_s | dict.fromkeys(lost, now_s)
        self._lost_s = {
            name: lost_s
            for name, lost_s in known.items()
            if (state := states.get(name)) is not None and state not in NOT_LOST
        }

    def _join(self, name: str, endpoint: Endpoint, group: asyncio.TaskGroup) -> ReplicaLink:
        link = self._make_link(name, endpoint.address, self._changed)
        link.cached = self.prefixes.holder(name)
        link.set_condition(endpoint.condition)
        self._tasks[link] = group.create_task(link.run())
        return link


async def _retire(link: ReplicaLink, running: asyncio.Task[None]) -> None:
    await link.idle()
    running.cancel()
