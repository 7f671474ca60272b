"""gRPC's standard health service: SERVING while the engine is up and the replica takes requests."""

import asyncio

from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from penstock_proto.replica_methods import SERVICE
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.server import Handlers, unary
from penstock_runtime.grpc.status import RpcError, Status

SERVICES = ("", SERVICE)
"""Services with a health: the process, and the replica service."""


class Health:
    """The health of the process and of the replica service, which is the same. At first it is NOT_SERVING."""

    def __init__(self) -> None:
        self._status = HealthCheckResponse.NOT_SERVING
        self._changed = asyncio.Event()

    @property
    def handlers(self) -> Handlers:
        """The handlers of the health service."""
        return {
            "/grpc.health.v1.Health/Check": unary(HealthCheckRequest, self._check),
            "/grpc.health.v1.Health/Watch": self._watch,
        }

    def set_serving(self, serving: bool) -> None:
        """Set the status."""
        self._status = HealthCheckResponse.SERVING if serving else HealthCheckResponse.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    async def _check(self, request: HealthCheckRequest, peer: str) -> HealthCheckResponse:
        if request.service not in SERVICES:
            raise RpcError(Status.NOT_FOUND, f"there is no service {request.service}")
        return HealthCheckResponse(status=self._status)

    async def _watch(self, call: GrpcCall) -> None:
        """Send the status now, and whenever it changes, until the client cancels."""
        request = await call.receive_one(HealthCheckRequest)
        known = request.service in SERVICES
        sent = None
        while True:
            changed = self._changed
            status = self._status if known else HealthCheckResponse.SERVICE_UNKNOWN
            if status != sent:
                await call.write(HealthCheckResponse(status=status))
                sent = status
            await changed.wait()
