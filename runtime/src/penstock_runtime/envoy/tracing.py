"""Spans of requests: Envoy's own OpenTelemetry tracer, which sends them to a collector by OTLP over HTTP.

A request with a `traceparent` continues its client's trace; of the others, the sampled share begins a trace.
Each attempt at a replica has its own span, so hops are visible. Replicas receive `traceparent`.
"""

from urllib.parse import urlsplit

from penstock_runtime.envoy.json_parts import Json, extension, seconds, typed
from penstock_runtime.envoy.settings import Tracing

CLUSTER = "traces"
TIMEOUT_S = 5.0
"""Longest wait for the collector; spans that it does not take are dropped, and requests do not wait."""

SERVICE = "penstock-gateway"
"""Name of the service in spans."""

PORTS = {"http": 80, "https": 443}


def tracing(given: Tracing | None) -> Json:
    """Return the fields of the API's connection manager; none without tracing."""
    if given is None:
        return {}
    collector = {"uri": given.url, "cluster": CLUSTER, "timeout": seconds(TIMEOUT_S)}
    provider = typed(
        "envoy.config.trace.v3.OpenTelemetryConfig",
        service_name=SERVICE,
        http_service={"http_uri": collector},
    )
    return {
        "tracing": {
            "spawn_upstream_span": True,
            "random_sampling": {"value": 100 * given.sampling},
            "provider": {"name": "envoy.tracers.opentelemetry", "typed_config": provider},
        }
    }


def collector_cluster(given: Tracing | None) -> list[Json]:
    """Return the cluster of the collector, if there is one."""
    if given is None:
        return []
    url = urlsplit(given.url)
    host, port = url.hostname or "", url.port or PORTS[url.scheme]
    address = {"socket_address": {"address": host, "port_value": port}}
    endpoints = [{"lb_endpoints": [{"endpoint": {"address": address}}]}]
    over_tls = extension(
        "envoy.transport_sockets.tls", "transport_sockets.tls.v3.UpstreamTlsContext", sni=host
    )
    return [
        {
            "name": CLUSTER,
            "type": "STRICT_DNS",
            "connect_timeout": seconds(TIMEOUT_S),
            "load_assignment": {"cluster_name": CLUSTER, "endpoints": endpoints},
            **({"transport_socket": over_tls} if url.scheme == "https" else {}),
        }
    ]
