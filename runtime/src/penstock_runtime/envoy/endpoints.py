"""The replicas of a gateway, as a file in the format of Envoy's endpoint discovery service (EDS).

It is written to a temporary file and moved into place, which Envoy detects: a new endpoint serves a few
milliseconds later, and a removed one finishes its streams.
"""

from collections.abc import Iterable
from pathlib import Path

import orjson

from penstock_runtime.envoy.json_parts import socket_address, typed
from penstock_runtime.envoy.settings import SocketAddress

CLUSTER = "replicas"


def endpoints_document(endpoints: Iterable[str]) -> bytes:
    """Return the file's contents. endpoints: `host:port` of replicas; equal sets give equal contents."""
    hosts = [{"endpoint": {"address": socket_address(_address(each))}} for each in sorted(set(endpoints))]
    assignment = typed(
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        cluster_name=CLUSTER,
        endpoints=[{"lb_endpoints": hosts}],
    )
    return orjson.dumps({"resources": [assignment]})


def write_endpoints(file: Path, endpoints: Iterable[str]) -> None:
    """Write a set of endpoints, which Envoy then applies. Raises OSError."""
    beside = file.with_name(f".{file.name}.new")
    beside.write_bytes(endpoints_document(endpoints))
    beside.replace(file)


def _address(endpoint: str) -> SocketAddress:
    host, _, port = endpoint.rpartition(":")
    return SocketAddress(host.strip("[]"), int(port))
