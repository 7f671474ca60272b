"""gRPC channels to replicas, in plain text or with TLS.

Certificates are renewed in place, so they are read again for each connection; open connections keep theirs.
If only one file of a pair is renewed when they are read, the connection fails, and the next one reads again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
from penstock_runtime.grpc_options import CLIENT_OPTIONS

Connect = Callable[[str], grpc.aio.Channel]
"""Opens a channel to an address. Raises OSError if a certificate cannot be read."""


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

    def credentials(self) -> grpc.ChannelCredentials:
        """Return credentials from the files as they are now. Raises OSError."""
        return grpc.ssl_channel_credentials(
            self.ca.read_bytes(),
            self.key.read_bytes() if self.key else None,
            self.cert.read_bytes() if self.cert else None,
        )


def connect_by(tls: Tls | None) -> Connect:
    """Return a function that connects to replicas."""
    if tls is None:
        return lambda address: grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    options: tuple[tuple[str, int | str], ...] = CLIENT_OPTIONS
    if tls.server_name is not None:
        options = (*options, ("grpc.ssl_target_name_override", tls.server_name))
    return lambda address: grpc.aio.secure_channel(address, tls.credentials(), options=options)
