"""Keeps the file of endpoints that an Envoy beside this picker reads, as replicas come and go.

Every replica that has told its HTTP port is in it, whether it takes requests or not: the picker chooses among
them. What a picker wrote before it was restarted holds until a replica has told it anew.
"""

import asyncio
from pathlib import Path

import structlog
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.envoy.endpoints import write_endpoints

CHECK_S = 0.1
"""How often the replicas are compared with the file."""

log = structlog.get_logger()


async def keep_endpoints(replica_set: ReplicaSet, file: Path) -> None:
    """Write the file whenever the replicas' endpoints change, until cancelled."""
    written: set[str] | None = None
    last_why = ""
    while True:
        endpoints = set(replica_set.http_endpoints().values())
        if endpoints != written and _known(replica_set, endpoints):
            try:
                write_endpoints(file, endpoints)
            except OSError as error:  # tried again; Envoy keeps the set before
                if last_why != (last_why := str(error)):
                    log.error("endpoints not written", file=str(file), why=last_why)
            else:
                written, last_why = endpoints, ""
                log.info("endpoints written", endpoints=len(endpoints))
        await asyncio.sleep(CHECK_S)


def _known(replica_set: ReplicaSet, endpoints: set[str]) -> bool:
    """Return whether this is the set, and not what is known so soon after a start."""
    return bool(endpoints) or (replica_set.known and not replica_set.links)
