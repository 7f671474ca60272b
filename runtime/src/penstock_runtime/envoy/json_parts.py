"""Parts that recur in Envoy's configuration."""

from typing import Any

from penstock_runtime.envoy.settings import SocketAddress

Json = dict[str, Any]

EXTENSIONS = "envoy.extensions"


def typed(kind: str, **fields: Any) -> Json:
    """Return a typed message. kind: its protobuf name."""
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def extension(name: str, kind: str, **fields: Any) -> Json:
    """Return a named extension. kind: the protobuf name of its configuration, below `envoy.extensions`."""
    return {"name": name, "typed_config": typed(f"{EXTENSIONS}.{kind}", **fields)}


def socket_address(at: SocketAddress) -> Json:
    """Return a TCP address."""
    return {"socket_address": {"address": at.host, "port_value": at.port}}


def seconds(value_s: float) -> str:
    """Return a duration in protobuf's JSON format."""
    return f"{value_s:.9f}".rstrip("0").rstrip(".") + "s"


def watched_file(path: str) -> Json:
    """Return a source of resources: a file that is reloaded when a file is moved into its folder."""
    folder = path.rpartition("/")[0]
    return {
        "resource_api_version": "V3",
        "path_config_source": {"path": path, "watched_directory": {"path": folder}},
    }


def patterns(*words: str) -> Json:
    """Return matchers of headers by name, or by prefix for words that end with a dash."""
    return {"patterns": [{"prefix" if word.endswith("-") else "exact": word} for word in words]}


def static_cluster(name: str, address: Json, connect_s: float, **more: Any) -> Json:
    """Return a cluster of one endpoint."""
    return {
        "name": name,
        "type": "STATIC",
        "connect_timeout": seconds(connect_s),
        "circuit_breakers": {"thresholds": [UNBOUNDED]},
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
        **more,
    }


MANY = 65536
UNBOUNDED: Json = {
    "max_connections": MANY,
    "max_pending_requests": MANY,
    "max_requests": MANY,
    "max_retries": MANY,
}
"""Limits that have no effect: replicas and the picker bound requests themselves. Envoy's defaults, 3 retries
and 1,024 requests, are too low."""
