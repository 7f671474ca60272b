"""Options of one operator process: namespaces, Lease, address of its pages, workers.

They come from the environment; `penstock-operator` also has flags, which override it.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from penstock_operator.cluster.kinds import LEASE
from penstock_operator.manifests.manifest import Ref
from penstock_operator.settings import SettingsError

LEASE_NAME = "penstock-operator"


@dataclass(frozen=True, slots=True)
class OperatorOptions:
    """Options of one process.

    namespaces: namespaces whose pools are served; empty for all.
    lease: Lease for leader election; None: no leader election. identity: name of this process in the Lease.
    host, port: address of metrics and health; port 0 for any free one.
    workers: number of pools reconciled concurrently. resync_s: time between full lists of all objects.
    """

    namespaces: tuple[str, ...] = ()
    lease: Ref | None = None
    identity: str = ""
    host: str = "0.0.0.0"
    port: int = 8080
    workers: int = 8
    resync_s: float = 120.0


def read_options(environment: Mapping[str, str]) -> OperatorOptions:
    """Return the options in an environment. Raises SettingsError."""
    return OperatorOptions(
        namespaces=namespaces_in(environment.get("PENSTOCK_NAMESPACES", "")),
        lease=lease_in(environment.get("PENSTOCK_LEASE_NAMESPACE", "")),
        identity=environment.get("POD_NAME") or f"{socket.gethostname()}-{os.getpid()}",
        host=environment.get("PENSTOCK_HOST") or "0.0.0.0",
        port=_port("PENSTOCK_PORT", environment.get("PENSTOCK_PORT") or "8080"),
    )


def namespaces_in(text: str) -> tuple[str, ...]:
    """Return the namespaces in a list separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def lease_in(namespace: str) -> Ref | None:
    """Return the Lease of an installation; None without a namespace."""
    return Ref(LEASE.api_version, LEASE.kind, namespace, LEASE_NAME) if namespace else None


def _port(variable: str, given: str) -> int:
    if given.isdecimal() and int(given) <= 65535:
        return int(given)
    raise SettingsError(f'{variable}: "{given}" is not a port: 0 to 65535')
