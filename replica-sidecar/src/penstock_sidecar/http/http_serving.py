"""Assembly of the replica's HTTP interface."""

import contextlib
import socket
from collections.abc import AsyncIterator

from penstock_pool import Pool
from penstock_routing.demand import Demand
from penstock_routing.request.byte_budget import ByteBudget
from penstock_routing.settings import settings_of
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.serving import Server, listen, serving
from penstock_runtime.tls import server_context
from prometheus_client import CollectorRegistry

from penstock_sidecar.http.app import HttpApp
from penstock_sidecar.http.intake import HttpIntake
from penstock_sidecar.http.metrics import HttpMetrics
from penstock_sidecar.http.request_path import HttpRequestPath
from penstock_sidecar.options import Address, SidecarTls
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults

LAST_BYTES_S = 1.0
"""Longest wait for responses to be written after the replica has drained."""


def http_listener(at: Address | None) -> socket.socket | None:
    """Return a bound socket; None if the replica does not serve HTTP. Raises StartError."""
    return None if at is None else listen(at.host, at.port)


def http_app(
    name: str,
    pool: Pool,
    replica: Replica,
    estimates: Estimates,
    *,
    demand: Demand,
    registry: CollectorRegistry,
    faults: Faults,
) -> HttpApp:
    """Return the HTTP application of a replica. name: the replica's name. demand: counts its requests."""
    settings = settings_of(pool)
    budget = ByteBudget(settings.buffer_bytes, f"replica {name}")
    request_path = HttpRequestPath(
        name,
        replica,
        estimates,
        intake=HttpIntake(pool, settings),
        metrics=HttpMetrics(settings.tiers, demand, budget, registry),
        faults=faults,
        stream_bytes=settings.stream_buffer_bytes,
        budget=budget,
    )
    return HttpApp(settings.model, pool.spec.engine.type, replica.state, request_path, faults)


@contextlib.asynccontextmanager
async def http_serving(
    app: HttpApp, listener: socket.socket, pool: Pool, tls: SidecarTls | None
) -> AsyncIterator[Server]:
    """Serve within the block."""
    router = pool.spec.router
    bounds = HttpBounds(
        head_bytes=router.max_header_bytes,
        half_closed_s=0.0,  # a gateway closes both sides when its client has gone
        write_s=router.write_timeout_s,
    )
    context = None if tls is None else server_context(tls.cert, tls.key, tls.client_ca)
    async with serving(app, listener, LAST_BYTES_S, bounds, context) as server:
        yield server
