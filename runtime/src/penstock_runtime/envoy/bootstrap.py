"""The whole configuration of a gateway.

    client ─▶ listener: strip headers ─▶ ext_authz: ask the picker ─▶ route: next endpoint on a rejection
                                                                       │
                                            replicas ◀─ endpoints, in the picker's order

All programs that start an Envoy use this configuration: `penstock up`, the operator and the tests. A test
compares the example in the documentation with it.
"""

from collections.abc import Mapping
from math import ceil

import orjson

from penstock_runtime.envoy.access_log import access_log
from penstock_runtime.envoy.certificates import listener_tls, replica_tls, secret_files
from penstock_runtime.envoy.client_headers import strip_client_headers
from penstock_runtime.envoy.endpoints import CLUSTER
from penstock_runtime.envoy.ext_authz import PickerFilter, ext_authz
from penstock_runtime.envoy.json_parts import (
    EXTENSIONS,
    UNBOUNDED,
    Json,
    extension,
    seconds,
    socket_address,
    static_cluster,
    typed,
    watched_file,
)
from penstock_runtime.envoy.local_replies import local_replies
from penstock_runtime.envoy.settings import EnvoySettings
from penstock_runtime.envoy.tracing import collector_cluster, tracing
from penstock_runtime.gateway_headers import DESTINATION, REJECTED, TIMEOUT_MS

FILE = "envoy.json"
"""Name of the configuration's file."""

REQUEST_S = 24 * 3600.0
"""Longest duration of a request over all endpoints. Replicas receive the remaining time in a header."""

IDLE_S = 3600.0
"""Longest time without any transfer for a request, which may be queued for that long."""

KEEP_ALIVE_S = 60.0
"""Time after which an idle connection to a replica is closed, before the replica closes it after 75 s."""

SILENT_S, PROBE_S, VANISHED_S = 10, 1, 15
"""Bounds on a replica's host, in seconds: without a packet from it for `SILENT_S`, the kernel sends a TCP
keepalive probe every `PROBE_S`; if it acknowledges nothing for `VANISHED_S`, the connection is lost. Pings to
replicas have the same bounds. A stopped process is not noticed, because its kernel still acknowledges: Envoy
keeps open HTTP/1.1 requests to an endpoint that is unhealthy, by EDS or by a health check."""

TCP, TCP_USER_TIMEOUT = 6, 18
"""Linux's numbers of the protocol, and of its option for the longest time without an acknowledgement."""

BUFFER_BYTES = 65536
"""Most bytes buffered per direction for a peer that does not read; then reading from the source pauses."""

STREAMS = 128
"""Most requests at once on one HTTP/2 connection."""

CLIENTS = 16384
"""Most connections of clients; more are refused, as by the router."""

MOST_HEAD_KIB = 8192
"""Longest request head that Envoy can be configured with."""

RETRIES = 3
"""Most endpoints after the first one, unless the picker sets another number."""


def configuration_files(settings: EnvoySettings) -> Mapping[str, bytes]:
    """Return the files that a gateway reads, by name, except the file of its endpoints."""
    return {FILE: orjson.dumps(bootstrap(settings)), **secret_files(settings)}


def bootstrap(settings: EnvoySettings, picker_filter: PickerFilter | None = None) -> Json:
    """Return the configuration. picker_filter: the filter that calls the picker, by default ext_authz."""
    picker_filter = picker_filter or ext_authz(settings)
    return {
        "node": {"id": "gateway", "cluster": "penstock"},
        "admin": {"address": _admin(settings)},
        "static_resources": {
            "listeners": [_api(settings, picker_filter), _pages(settings)],
            "clusters": [
                _replicas(settings, picker_filter.namespace),
                picker_filter.picker,
                static_cluster("admin", _admin(settings), 1.0),
                *collector_cluster(settings.tracing),
            ],
        },
        "overload_manager": {
            "resource_monitors": [
                extension(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=CLIENTS,
                )
            ]
        },
    }


def _admin(settings: EnvoySettings) -> Json:
    return {"pipe": {"path": settings.admin_socket, "mode": 0o600}}


def _api(settings: EnvoySettings, picker_filter: PickerFilter) -> Json:
    bounds = settings.bounds
    manager = _http_manager(
        "api",
        [picker_filter.filter],
        route_config={"virtual_hosts": [_virtual_host(settings)]},
        use_remote_address=True,
        preserve_external_request_id=True,
        normalize_path=True,
        server_header_transformation="PASS_THROUGH",
        max_request_headers_kb=min(ceil(bounds.head_bytes / 1024), MOST_HEAD_KIB),
        request_headers_timeout=seconds(bounds.body_s),
        request_timeout=seconds(bounds.body_s),
        stream_idle_timeout=seconds(IDLE_S),
        stream_flush_timeout=seconds(bounds.write_s),
        delayed_close_timeout="0.1s",  # delay until a client detects that its stream was cut off
        http2_protocol_options={
            "max_concurrent_streams": STREAMS,
            "initial_stream_window_size": BUFFER_BYTES,
            "initial_connection_window_size": 2 * STREAMS * BUFFER_BYTES,
        },
        early_header_mutation_extensions=[strip_client_headers()],
        local_reply_config=local_replies(bounds),
        access_log=access_log(),
        **tracing(settings.tracing),
    )
    return {
        "name": "api",
        "address": socket_address(settings.api),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "filter_chains": [{"filters": [manager], **listener_tls(settings)}],
    }


def _virtual_host(settings: EnvoySettings) -> Json:
    hops = {"header": {"key": "x-penstock-hops", "value": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%"}}
    timeout = {"header": {"key": TIMEOUT_MS, "value": f"{REQUEST_S * 1000:.0f}"}}
    return {
        "name": "pool",
        "domains": ["*"],
        "include_request_attempt_count": True,  # the last endpoint may serve the request as best effort
        "request_body_buffer_limit": settings.bounds.body_bytes,
        "request_headers_to_add": [{**timeout, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        "response_headers_to_add": [{**hops, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}],
        "routes": [{"match": {"prefix": "/"}, "route": _route()}],
    }


def _route() -> Json:
    return {
        "cluster": CLUSTER,
        "timeout": seconds(REQUEST_S),
        "retry_policy": {  # rejected requests hop, and so do requests that no replica has begun
            "retry_on": "retriable-headers,connect-failure,refused-stream,reset-before-request",
            "retriable_headers": [{"name": REJECTED, "present_match": True}],
            "num_retries": RETRIES,  # the picker's x-envoy-max-retries replaces it
            "retry_back_off": {"base_interval": "0.001s", "max_interval": "0.001s"},
        },
    }


def _pages(settings: EnvoySettings) -> Json:
    """Return the listener for readiness and metrics: only these two pages of the administration interface."""
    routes = [
        {"match": {"path": page}, "route": {"cluster": "admin"}} for page in ("/ready", "/stats/prometheus")
    ]
    manager = _http_manager(
        "pages", [], route_config={"virtual_hosts": [{"name": "pages", "domains": ["*"], "routes": routes}]}
    )
    return {
        "name": "pages",
        "address": socket_address(settings.pages),
        "ignore_global_conn_limit": True,
        "filter_chains": [{"filters": [manager]}],
    }


def _http_manager(name: str, filters: list[Json], **fields: object) -> Json:
    router = extension("envoy.filters.http.router", "filters.http.router.v3.Router")
    return extension(
        "envoy.filters.network.http_connection_manager",
        "filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix=name,
        http_filters=[*filters, router],
        **fields,
    )


def _replicas(settings: EnvoySettings, namespace: str) -> Json:
    """Return the cluster of replicas: the picker's endpoints in order, or any endpoint without them."""
    protocol = f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"
    options = typed(
        protocol,
        common_http_protocol_options={"idle_timeout": seconds(KEEP_ALIVE_S)},
        explicit_http_config={"http_protocol_options": {}},
    )
    return {
        "name": CLUSTER,
        "type": "EDS",
        "connect_timeout": "0.5s",
        **_vanished_hosts(),
        "per_connection_buffer_limit_bytes": BUFFER_BYTES,
        "eds_cluster_config": {"eds_config": watched_file(settings.endpoints_file)},
        "circuit_breakers": {"thresholds": [UNBOUNDED]},
        "typed_extension_protocol_options": {protocol: options},
        "load_balancing_policy": _policies("override_host", "OverrideHost", **_override(namespace)),
        **replica_tls(settings),
    }


def _vanished_hosts() -> Json:
    """Return the options that end a connection to a host that has vanished.

    Keepalive does so while nothing is unacknowledged, and the timeout otherwise.
    """
    keepalive = {"keepalive_time": SILENT_S, "keepalive_interval": PROBE_S}
    timeout = {
        "description": "TCP_USER_TIMEOUT",
        "level": TCP,
        "name": TCP_USER_TIMEOUT,
        "int_value": VANISHED_S * 1000,
        "state": "STATE_PREBIND",
    }
    return {
        "upstream_connection_options": {"tcp_keepalive": keepalive},
        "upstream_bind_config": {"socket_options": [timeout]},
    }


def _override(namespace: str) -> Json:
    """Return the policy that uses the picker's endpoints, and others only if all of these are unknown."""
    source = {"metadata": {"key": namespace, "path": [{"key": DESTINATION}]}}
    return {"override_host_sources": [source], "fallback_policy": _policies("round_robin", "RoundRobin")}


def _policies(name: str, kind: str, **fields: object) -> Json:
    one = extension(
        f"envoy.load_balancing_policies.{name}", f"load_balancing_policies.{name}.v3.{kind}", **fields
    )
    return {"policies": [{"typed_extension_config": one}]}
