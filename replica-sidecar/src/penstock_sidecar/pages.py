"""The sidecar's HTTP pages for Prometheus, for probes, and for the operator."""

from collections.abc import Sequence

from penstock_routing.demand import Demand, replica_row
from penstock_routing.replicas.link_state import LinkState
from penstock_runtime.http_request import App
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.pages import PROMETHEUS, Page, pages_app
from prometheus_client import CollectorRegistry, generate_latest

from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.serving import ServiceState


def inspection_app(
    name: str, registry: CollectorRegistry, replicas: Sequence[Replica], demand: Demand | None
) -> App:
    """Return the pages `/metrics`, `/health`, `/ready`, and demand if the replica serves HTTP.

    name: the replica's name. replicas: this replica; empty until it is assembled.
    demand: demand of requests over HTTP; None if the replica does not serve HTTP.
    """

    def ready() -> bytes:
        if not any(replica.state.serves for replica in replicas):
            raise ApiError(503, "the replica takes no requests now", type="server_error", code="not_ready")
        return b"{}"

    pages = {
        "/metrics": Page("metrics for Prometheus", lambda: generate_latest(registry), PROMETHEUS),
        "/health": Page("200 while the process runs", lambda: b"{}"),
        "/ready": Page("200 while the replica takes requests", ready),
    }
    if demand is not None:
        pages["/penstock/v1/demand"] = Page(
            "demand on the pool through gateways, for autoscaling",
            lambda: demand.page(
                0, [replica_row(name, _state(each.state), each.load, 0) for each in replicas]
            ),
        )
    return pages_app(f"penstock-sidecar of {name}", pages)


def _state(service: ServiceState) -> LinkState:
    """Return the state in a router's terms."""
    if service.draining:
        return LinkState.DRAINING
    return LinkState.READY if service.engine_ready else LinkState.ENGINE_DOWN
