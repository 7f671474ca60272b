"""The gRPC server of the replica service and its health."""

import contextlib
from collections.abc import AsyncIterator

import grpc
from penstock_proto import replica_pb2_grpc
from penstock_runtime.grpc_options import SERVER_OPTIONS
from penstock_runtime.serving import StartError, listen

from penstock_sidecar.options import Address, SidecarTls
from penstock_sidecar.service.health import Health
from penstock_sidecar.service.renewed_certificate import server_credentials
from penstock_sidecar.service.replica_service import ReplicaService

STOP_GRACE_S = 1.0
"""Longest wait for sessions to take their last frame when the server stops."""


@contextlib.asynccontextmanager
async def grpc_serving(
    service: ReplicaService, health: Health, requested: Address, tls: SidecarTls | None
) -> AsyncIterator[Address]:
    """Serve within the block. Yields the address. Raises StartError."""
    server = grpc.aio.server(options=SERVER_OPTIONS)
    replica_pb2_grpc.add_ReplicaServicer_to_server(service, server)
    health.add_to(server)
    address = _bind(server, requested, tls)
    await server.start()
    try:
        yield address
    finally:
        await server.stop(STOP_GRACE_S)


def _bind(server: "grpc.aio.Server", requested: Address, tls: SidecarTls | None) -> Address:
    """Bind the server. A plain socket is bound first, because gRPC's error does not name the cause."""
    listen(requested.host, requested.port).close()
    try:
        if tls is None:
            port = server.add_insecure_port(str(requested))
        else:
            port = server.add_secure_port(str(requested), server_credentials(tls))
    except RuntimeError as error:
        raise StartError(f"cannot listen on {requested}: {error}") from None
    return Address(requested.host, port)
