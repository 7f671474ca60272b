"""Envoy's own errors, in OpenAI's format and with the router's messages."""

from typing import Any

from penstock_runtime.envoy.json_parts import Json
from penstock_runtime.envoy.settings import GatewayBounds
from penstock_runtime.openai_errors import ApiError, body_too_large

MOST_HEADERS = 100
"""Most headers of a request: Envoy's default of `max_headers_count`."""


def local_replies(bounds: GatewayBounds) -> Json:
    """Return the bodies and headers of the statuses that Envoy itself answers."""
    long_head = f"the request has more than {MOST_HEADERS} headers, or over {bounds.head_bytes} bytes of them"
    late = f"the request did not arrive within {bounds.body_s:g} s"
    once = [_header("x-should-retry", "false")]
    return {
        "mappers": [
            _mapper("EQ", body_too_large(bounds.body_bytes), once),
            _mapper("EQ", ApiError(431, long_head), once),
            _mapper("EQ", ApiError(408, late, type="timeout_error")),
            _mapper("EQ", ApiError(403, "no other protocol is supported"), once, request_header="upgrade"),
            _mapper("EQ", ApiError(426, "HTTP/1.0 is not supported"), once),
            _mapper("EQ", ApiError(501, "no transfer encoding other than chunked is supported"), once),
            _mapper("GE", _UNAVAILABLE, [_header("retry-after", "1")]),
        ]
    }


_UNAVAILABLE = ApiError(
    500, "no replica answered (%RESPONSE_CODE_DETAILS%)", type="no_replicas", code="no_replicas"
)
"""Body of every server error that Envoy itself answers: no picker, no replica, or a lost replica."""


def _mapper(
    compares: str, error: ApiError, headers: list[Json] | None = None, *, request_header: str = ""
) -> Json:
    """Return the format of one status, or of all statuses from it on.

    compares: `EQ` or `GE`.
    request_header: header that the request must have, where a picker's error may have the same status.
    """
    status = {"default_value": error.status, "runtime_key": "unused"}
    compared: Json = {"status_code_filter": {"comparison": {"op": compares, "value": status}}}
    has_header: Json = {"header_filter": {"header": {"name": request_header, "present_match": True}}}
    headers = [_header("x-request-id", "%REQ(X-REQUEST-ID)%"), *(headers or [])]
    body: dict[str, Any] = {"json_format": {"error": error.as_dict()}}
    return {
        "filter": {"and_filter": {"filters": [compared, has_header]}} if request_header else compared,
        "headers_to_add": headers,
        "body_format_override": body,
    }


def _header(name: str, value: str) -> Json:
    return {"header": {"key": name, "value": value}, "append_action": "ADD_IF_ABSENT"}
