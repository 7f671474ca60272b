"""Call of the picker by ext_proc over gRPC, as gateways of the Inference Extension do it.

It takes several times as much CPU in Envoy and picker as `ext_authz`, so Penstock's own Envoys do not use it.
Tests and benchmarks use it to represent gateways that others configure.
"""

from penstock_runtime.envoy.ext_authz import ANSWER_S, CONNECT_S, PickerFilter
from penstock_runtime.envoy.json_parts import (
    EXTENSIONS,
    extension,
    seconds,
    socket_address,
    static_cluster,
    typed,
)
from penstock_runtime.envoy.settings import EnvoySettings

NAMESPACE = "envoy.lb"
"""Namespace of the metadata in which the picker returns the endpoints."""

DUPLEX = "FULL_DUPLEX_STREAMED"
"""The mode of the endpoint picker protocol: Envoy sends the body on while the picker reads it."""


def ext_proc(settings: EnvoySettings, answer_s: float = ANSWER_S, mode: str = DUPLEX) -> PickerFilter:
    """Return the filter. mode: processing mode of the body.

    answer_s: longest wait for the picker. While a body is streamed, the picker fails if it answers no ping
        for this long.
    """
    filter = extension(
        "envoy.filters.http.ext_proc",
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout=seconds(answer_s),
        failure_mode_allow=settings.fail_open,
        status_on_error={"code": "ServiceUnavailable"},
        mutation_rules={"allow_envoy": True},
        metadata_options={
            "receiving_namespaces": {"untyped": [NAMESPACE]},
            "forwarding_namespaces": {"untyped": ["envoy.lb.subset_hint"]},
        },
        processing_mode={
            "request_header_mode": "SEND",
            "request_body_mode": mode,
            "request_trailer_mode": "SEND" if mode == DUPLEX else "SKIP",
            "response_header_mode": "SKIP",
            "response_body_mode": "NONE",
            "response_trailer_mode": "SKIP",
        },
    )
    protocol = f"{EXTENSIONS}.upstreams.http.v3.HttpProtocolOptions"
    pings = {"connection_keepalive": {"interval": seconds(answer_s), "timeout": seconds(answer_s)}}
    options = typed(protocol, explicit_http_config={"http2_protocol_options": pings})
    picker = static_cluster(
        "picker",
        socket_address(settings.picker),
        CONNECT_S,
        typed_extension_protocol_options={protocol: options},
    )
    return PickerFilter(filter, NAMESPACE, picker)
