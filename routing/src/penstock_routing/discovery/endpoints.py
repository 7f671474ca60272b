"""Endpoints of replicas, and their sources.

A source yields complete sets of endpoints by name; each replaces the previous one. If a source ends or yields
no more, its last set remains in use. `Fixed` is a set from the command line; `endpoint_watch` follows a
Service in a cluster.

New requests are only sent to replicas in service. A replica that is not ready or terminating keeps its link,
so that its requests are finished.
"""

from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol


class Service(NamedTuple):
    """A Service in a cluster, whose endpoints are the replicas."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


class Condition(StrEnum):
    """The condition of an endpoint in the cluster."""

    IN_SERVICE = "in_service"
    NOT_READY = "not_ready"  # it may become ready again
    TERMINATING = "terminating"  # it finishes its requests, and ends


class Endpoint(NamedTuple):
    """A replica's address and condition. address: `host:port`."""

    address: str
    condition: Condition = Condition.IN_SERVICE


Endpoints = Mapping[str, Endpoint]
"""Endpoints by replica name."""


class Source(Protocol):
    """A source of replica sets: the current one, then every changed one."""

    @property
    def connected(self) -> bool:
        """Whether a change would be noticed now."""

    @property
    def malformed(self) -> int:
        """Number of objects that were malformed."""

    def sets(self) -> AsyncIterator[Endpoints]:
        """Yield the sets, for as long as the caller iterates."""


class Fixed:
    """A set of replicas that never changes."""

    connected = True
    malformed = 0

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._set = {name: Endpoint(address) for name, address in addresses.items()}

    async def sets(self) -> AsyncIterator[Endpoints]:
        """Yield the only set."""
        yield self._set
