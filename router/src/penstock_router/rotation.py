"""The replicas that this router knows, each with its link, following a source of replica sets.

A replica that leaves the set gets nothing more and finishes what it carries; then its link is closed. One
whose address changed is a new replica under an old name.
"""

import asyncio
from collections.abc import AsyncIterator, Callable

from penstock_core.replica_load import ReplicaLoad

from penstock_router.discovery import ReplicaSet
from penstock_router.replica_link import LinkState, ReplicaLink

MakeLink = Callable[[str, str], ReplicaLink]


class Rotation:
    """Links by replica name."""

    def __init__(self, make_link: MakeLink) -> None:
        self._make_link = make_link
        self._links: dict[str, ReplicaLink] = {}
        self._tasks: dict[ReplicaLink, asyncio.Task[None]] = {}

    def __getitem__(self, name: str) -> ReplicaLink:
        return self._links[name]

    @property
    def links(self) -> list[ReplicaLink]:
        """All of the set, by name."""
        return [self._links[name] for name in sorted(self._links)]

    def loads(self) -> list[ReplicaLoad]:
        """The replicas that take work."""
        return [link.load for link in self._links.values() if link.state is LinkState.READY]

    @property
    def ready(self) -> bool:
        """Whether any replica takes work."""
        return any(link.state is LinkState.READY for link in self._links.values())

    async def follow(self, source: AsyncIterator[ReplicaSet]) -> None:
        """Keep to the source until cancelled; then every link is closed."""
        try:
            async with asyncio.TaskGroup() as group:
                async for replicas in source:
                    self._apply(replicas, group)
        finally:
            self._links.clear()
            self._tasks.clear()

    def _apply(self, replicas: ReplicaSet, group: asyncio.TaskGroup) -> None:
        for name, link in list(self._links.items()):
            if replicas.get(name) != link.address:
                del self._links[name]
                group.create_task(_retire(link, self._tasks.pop(link)))
        for name, address in replicas.items():
            if name not in self._links:
                link = self._links[name] = self._make_link(name, address)
                self._tasks[link] = group.create_task(link.run())


async def _retire(link: ReplicaLink, running: asyncio.Task[None]) -> None:
    await link.idle()
    running.cancel()
