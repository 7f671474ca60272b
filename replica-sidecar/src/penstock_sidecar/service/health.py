"""gRPC's standard health service: SERVING while the engine is up and the replica takes requests."""

import asyncio

from grpc_health.v1 import health, health_pb2, health_pb2_grpc

SERVICE = "penstock.v1.Replica"


class Health:
    """The health of the process (empty name) and of the replica service. At first both are NOT_SERVING."""

    def __init__(self) -> None:
        self._servicer = health.aio.HealthServicer()
        self._updates: set[asyncio.Task[None]] = set()
        self.set_serving(False)

    def add_to(self, server: object) -> None:
        """Add the health service to a gRPC server."""
        health_pb2_grpc.add_HealthServicer_to_server(self._servicer, server)

    def set_serving(self, serving: bool) -> None:
        """Set the status."""
        task = asyncio.get_running_loop().create_task(self._set(serving))
        self._updates.add(task)
        task.add_done_callback(self._updates.discard)

    async def _set(self, serving: bool) -> None:
        status = health_pb2.HealthCheckResponse
        for service in ("", SERVICE):
            await self._servicer.set(service, status.SERVING if serving else status.NOT_SERVING)
