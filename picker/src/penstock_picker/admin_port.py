"""The picker's admin port: metrics, demand, and readiness."""

from collections.abc import Callable

import orjson
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_runtime.http_request import App
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.pages import PROMETHEUS, Page, pages_app

from penstock_picker.drained_envoy import DrainedEnvoy
from penstock_picker.endpoints_file import EndpointsFile
from penstock_picker.picker import Picker


def admin_app(
    picker: Picker,
    replica_set: ReplicaSet,
    pool: str,
    endpoints: EndpointsFile | None = None,
    envoy: DrainedEnvoy | None = None,
    *,
    stopping: Callable[[], bool] = lambda: False,
) -> App:
    """Return the pages of a picker.

    pool: the pool's name. endpoints, envoy: the Envoy beside the picker, and its file, if there is one.
    stopping: whether the picker is stopping, so that it is not ready.
    """

    def ready() -> bytes:
        if stopping():
            raise ApiError(503, "the picker is stopping", type="server_error", code="draining")
        if envoy is not None and envoy.unready is not None:
            raise ApiError(503, envoy.unready, type="server_error", code="envoy_not_ready")
        if not replica_set.ready or (endpoints is not None and not endpoints.written):
            raise ApiError(503, "no replica is in service", type="server_error", code="no_replicas")
        return orjson.dumps({"status": "ready", "endpoints": replica_set.http_endpoints()})

    pages = {
        "/metrics": Page("metrics for Prometheus", picker.metrics.page, PROMETHEUS),
        "/penstock/v1/demand": Page("demand on the pool", picker.demand_page),
        "/health": Page("200 while the process runs", lambda: b'{"status":"ok"}'),
        "/ready": Page("200 while a replica takes requests, unless Envoy has to be restarted", ready),
    }
    return pages_app(f"penstock-picker of the pool {pool}", pages)
