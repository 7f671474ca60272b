"""Inputs of one gateway's configuration."""

from dataclasses import dataclass
from pathlib import PurePosixPath

SOCKET = "envoy-admin.sock"
"""Socket of Envoy's administration interface, in the gateway's folder. Its clients can stop Envoy."""

ENDPOINTS = "endpoints.json"
"""The file of replicas, in the gateway's folder. The picker writes it, and Envoy watches the folder."""


@dataclass(frozen=True, slots=True)
class SocketAddress:
    """Host and port of a socket. Port 0, for tests, means any free port."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class ClientTls:
    """Files of the server certificate for clients."""

    cert: str
    key: str


@dataclass(frozen=True, slots=True)
class ReplicaTls:
    """Files of the mutual TLS to replicas.

    server_name, engine_server_name: DNS names in the certificates of sidecars and engines.
    """

    ca: str
    cert: str
    key: str
    server_name: str
    engine_server_name: str


@dataclass(frozen=True, slots=True)
class GatewayBounds:
    """A pool's bounds on its clients.

    body_bytes, head_bytes: longest body and head of a request. body_s: longest time for a request to arrive.
    write_s: longest time in which a client reads none of its waiting bytes.
    """

    body_bytes: int = 8 * 2**20
    head_bytes: int = 32 * 2**10
    body_s: float = 30.0
    write_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Tracing:
    """The collector of spans. url: for OTLP over HTTP, with path. sampling: share of requests, 0 to 1."""

    url: str
    sampling: float = 1.0


@dataclass(frozen=True, slots=True)
class EnvoySettings:
    """Settings of one gateway.

    api: address for clients. pages: address of `/ready` and `/stats/prometheus`.
    picker: address of the picker's ext_authz.
    folder: folder of the endpoints file and the administration socket; writable by Envoy and the picker only.
    files: folder of the other files that Envoy watches; None: `folder`.
    fail_open: whether requests pass while the picker does not answer. Then their keys are not checked.
    tracing: None: requests are not traced.
    """

    api: SocketAddress
    pages: SocketAddress
    picker: SocketAddress
    folder: PurePosixPath
    bounds: GatewayBounds = GatewayBounds()
    fail_open: bool = False
    tls: ClientTls | None = None
    replica_tls: ReplicaTls | None = None
    files: PurePosixPath | None = None
    tracing: Tracing | None = None

    @property
    def admin_socket(self) -> str:
        """Return the path of the administration socket."""
        return str(self.folder / SOCKET)

    @property
    def endpoints_file(self) -> str:
        """Return the path of the file of endpoints."""
        return str(self.folder / ENDPOINTS)

    def file(self, name: str) -> str:
        """Return the path of another file that Envoy watches."""
        return str((self.files or self.folder) / name)
