"""The endpoints of replicas, and where they come from.

A source yields whole sets, endpoints by name; each replaces the one before. A source that ends or falls
silent leaves its last set in force. `Fixed` is a set from the command line; `endpoint_watch` follows one of a
cluster.

An endpoint has a condition. New requests go to replicas in service only. A replica that is not ready, or
terminating, keeps its link, so that its requests are answered.
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
    """Whether the cluster wants requests sent to a replica."""

    IN_SERVICE = "in_service"
    NOT_READY = "not_ready"  # it may be again
    TERMINATING = "terminating"  # it finishes what it has, and goes


class Endpoint(NamedTuple):
    """Where a replica is. address: `host:port`."""

    address: str
    condition: Condition = Condition.IN_SERVICE


Endpoints = Mapping[str, Endpoint]
"""Places by replica name."""


class Source(Protocol):
    """Says replica sets, the present one first, then each that differs."""

    @property
    def connected(self) -> bool:
        """Whether a change would be noticed now."""

    @property
    def malformed(self) -> int:
        """Number of objects that were malformed."""

    def sets(self) -> AsyncIterator[Endpoints]:
        """Yield the sets, for as long as the caller iterates."""


class Fixed:
    """These replicas, for ever."""

    connected = True
    malformed = 0

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._set = {name: Endpoint(address) for name, address in addresses.items()}

    async def sets(self) -> AsyncIterator[Endpoints]:
        """The one set."""
        yield self._set
