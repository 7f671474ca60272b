"""Where the replicas are.

A source says whole sets, name to place; each replaces the one before. A source that ends or falls silent
leaves its last set in force. `Fixed` is a set from the command line; `endpoint_watch` follows a cluster.

A place also says what its owner wants with the replica. New requests go to those in service only. One that is
not ready, or terminating, keeps its link, so that what it carries comes back.
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
    """What the replica's owner wants with it."""

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
        """Whether a change would be heard now."""

    @property
    def malformed(self) -> int:
        """How much of what it was told could not be used."""

    def sets(self) -> AsyncIterator[Endpoints]:
        """The sets, for as long as somebody listens."""


class Fixed:
    """These replicas, for ever."""

    connected = True
    malformed = 0

    def __init__(self, addresses: Mapping[str, str]) -> None:
        self._set = {name: Endpoint(address) for name, address in addresses.items()}

    async def sets(self) -> AsyncIterator[Endpoints]:
        """The one set."""
        yield self._set
