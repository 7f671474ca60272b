"""The sidecar's HTTP pages for Prometheus and for probes."""

from collections.abc import Callable

from penstock_runtime.http_request import App
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.pages import PROMETHEUS, Page, pages_app
from prometheus_client import CollectorRegistry, generate_latest


def inspection_app(name: str, registry: CollectorRegistry, serving: Callable[[], bool]) -> App:
    """Serve `/metrics`, `/health` of the process, and `/ready` of the replica of this name."""

    def ready() -> bytes:
        if not serving():
            raise ApiError(503, "the replica takes no requests now", type="server_error", code="not_ready")
        return b"{}"

    pages = {
        "/metrics": Page("metrics for Prometheus", lambda: generate_latest(registry), PROMETHEUS),
        "/health": Page("200 while the process runs", lambda: b"{}"),
        "/ready": Page("200 while the replica takes requests", ready),
    }
    return pages_app(f"penstock-sidecar of {name}", pages)
