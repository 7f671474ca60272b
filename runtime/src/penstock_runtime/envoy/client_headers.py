"""Headers that clients may not send, because the gateway and its picker instruct replicas with them.

They are removed before any other filter reads them, so that they have no effect while the picker is down
either.
"""

from penstock_runtime.envoy.json_parts import Json, extension
from penstock_runtime.gateway_headers import APPLICATION, DECIDED, DESTINATION, MAX_HOPS, TIMEOUT_MS

PREFIXES = ("x-envoy-", DESTINATION)
"""Prefixes of Envoy's own instructions, and of the headers with endpoints and their subset."""

NAMES = (MAX_HOPS, TIMEOUT_MS, APPLICATION, DECIDED, "x-prefiller-host-port")


def strip_client_headers() -> Json:
    """Return the extension that removes these headers."""
    by_prefix = [{"remove_on_match": {"key_matcher": {"prefix": prefix}}} for prefix in PREFIXES]
    by_name = [{"remove": name} for name in NAMES]
    return extension(
        "envoy.http.early_header_mutation.header_mutation",
        "http.early_header_mutation.header_mutation.v3.HeaderMutation",
        mutations=[*by_prefix, *by_name],
    )
