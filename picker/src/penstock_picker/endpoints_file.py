"""The file of endpoints that an Envoy beside this picker reads.

It lists every replica that has reported its HTTP port, whether or not it takes requests, because the picker
selects among them. Entries written before a restart of the picker remain until the replica has reported
again.
"""

import asyncio
from pathlib import Path

import structlog
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.envoy.endpoints import write_endpoints

CHECK_S = 0.1
"""Seconds between comparisons of the replicas with the file."""

log = structlog.get_logger()


class EndpointsFile:
    """The file. written: the endpoints in it; None before this process has written it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written: frozenset[str] | None = None

    async def maintain(self, replica_set: ReplicaSet) -> None:
        """Write the file whenever the replicas' endpoints change, until cancelled."""
        last_why = ""
        while True:
            endpoints = frozenset(replica_set.http_endpoints().values())
            if endpoints != self.written and _is_complete(replica_set, endpoints):
                why = self._write(endpoints)
                if why and why != last_why:
                    log.error("endpoints not written", file=str(self._path), why=why)
                last_why = why
            await asyncio.sleep(CHECK_S)

    def _write(self, endpoints: frozenset[str]) -> str:
        """Write the file. Return the error, or an empty string.

        After an error Envoy keeps the previous endpoints, and the next comparison tries again.
        """
        try:
            write_endpoints(self._path, endpoints)
        except OSError as error:
            return str(error)
        self.written = endpoints
        log.info("endpoints written", endpoints=len(endpoints))
        return ""


def _is_complete(replica_set: ReplicaSet, endpoints: frozenset[str]) -> bool:
    """Return whether the endpoints are those of the pool: soon after a start none may be known yet."""
    return bool(endpoints) or (replica_set.known and not replica_set.links)
