"""The gRPC server of the replica service and its health."""

import contextlib
from collections.abc import AsyncIterator

from penstock_proto import replica_pb2 as wire
from penstock_proto.replica_methods import DESCRIBE, DETOKENIZE, DRAIN, RESUME, SESSION
from penstock_runtime.grpc.server import Handlers, grpc_serving, unary
from penstock_runtime.serving import StartError, listen
from penstock_runtime.tls import server_context

from penstock_sidecar.options import Address, SidecarTls
from penstock_sidecar.service.health import Health
from penstock_sidecar.service.replica_service import ReplicaService

STOP_GRACE_S = 1.0
"""Longest wait for sessions to take their last frame when the server stops."""


def handlers_of(service: ReplicaService) -> Handlers:
    """Return the handlers of the replica service."""
    return {
        SESSION: service.session,
        DESCRIBE: unary(wire.DescribeRequest, service.describe),
        DETOKENIZE: unary(wire.DetokenizeRequest, service.detokenize),
        DRAIN: unary(wire.DrainRequest, service.drain),
        RESUME: unary(wire.ResumeRequest, service.resume),
    }


@contextlib.asynccontextmanager
async def service_serving(
    service: ReplicaService, health: Health, requested: Address, tls: SidecarTls | None
) -> AsyncIterator[Address]:
    """Serve within the block. Yields the address. Raises StartError."""
    try:
        context = None if tls is None else server_context(tls.cert, tls.key, tls.client_ca, "h2")
    except OSError as error:
        raise StartError(f"TLS of the replica service: {error.filename}: {error.strerror}") from None
    listener = listen(requested.host, requested.port)
    handlers = {**handlers_of(service), **health.handlers}
    async with grpc_serving(handlers, listener, context, stop_s=STOP_GRACE_S):
        yield Address(requested.host, listener.getsockname()[1])
