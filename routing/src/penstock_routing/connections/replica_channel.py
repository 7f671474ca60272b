"""Channels to replicas, in plain text or with TLS.

Certificates are renewed in place. A new connection uses those in the files, or the last valid ones while the
files are being renewed; open connections keep theirs.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock_runtime.client_tls import Contexts, client_contexts
from penstock_runtime.grpc.client import Channel

Connect = Callable[[str], Channel]
"""Returns a channel to an address."""


@dataclass(frozen=True, slots=True)
class Tls:
    """Files for TLS to replicas.

    ca: CA of replicas' certificates. cert, key: this router's own, for mutual TLS.
    server_name: name in replicas' certificates; None for the address that is connected to.
    """

    ca: Path
    cert: Path | None = None
    key: Path | None = None
    server_name: str | None = None

    def contexts(self) -> Contexts:
        """Return contexts that are reloaded when the files are renewed. Raises OSError."""
        return client_contexts(self.ca, self.cert, self.key, self.server_name, protocol="h2")


def connect_by(tls: Tls | None) -> Connect:
    """Return a function that connects to replicas. Raises OSError if a certificate cannot be read."""
    contexts = None if tls is None else tls.contexts()
    return lambda address: Channel(address, contexts)
