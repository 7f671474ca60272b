"""Envoy's own errors, in OpenAI's format and with the router's messages."""

from typing import Any

from penstock_runtime.envoy.json_parts import Json
from penstock_runtime.envoy.settings import GatewayBounds
from penstock_runtime.openai_errors import ApiError, body_too_large

MOST_HEADERS = 100
"""Most headers of a request: Envoy's default of `max_headers_count`."""

UPGRADE: Json = {"header_filter": {"header": {"name": "upgrade", "present_match": True}}}
"""Requests for another protocol."""

NO_PATH: Json = {
    "header_filter": {
        "header": {
            "name": ":path",
            "string_match": {"prefix": "/"},
            "invert_match": True,
            "treat_missing_header_as_empty": True,
        }
    }
}
"""Requests for no path, as `OPTIONS *` and `CONNECT` are."""

NOT_AUTHORIZED: Json = {"response_flag_filter": {"flags": ["UAEX"]}}
"""Requests that ext_authz has not passed. Envoy answers 500 where the picker's headers would take the request
past Envoy's own bounds."""


def local_replies(bounds: GatewayBounds) -> Json:
    """Return the bodies and headers of the statuses that Envoy itself answers."""
    long_head = ApiError(
        431,
        f"the request has more than {MOST_HEADERS} headers, or over {bounds.head_bytes} bytes of them, "
        "with those that the gateway adds",
    )
    late = f"the request did not arrive within {bounds.body_s:g} s"
    once = [_header("x-should-retry", "false")]
    return {
        "mappers": [
            _mapper("EQ", body_too_large(bounds.body_bytes), once),
            _mapper("EQ", long_head, once),
            _mapper("EQ", long_head, once, status=500, also=NOT_AUTHORIZED),  # past it with the picker's
            _mapper("EQ", ApiError(408, late, type="timeout_error")),
            _mapper("EQ", ApiError(403, "no other protocol is supported"), once, also=UPGRADE),
            _mapper("EQ", ApiError(404, "no such path", code="not_found"), once, also=NO_PATH),
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
    compares: str,
    error: ApiError,
    headers: list[Json] | None = None,
    *,
    status: int | None = None,
    also: Json | None = None,
) -> Json:
    """Return the format of one status, or of all statuses from it on.

    compares: `EQ` or `GE`.
    status: Envoy's status, if it is not the error's.
    also: filter of the requests, where a picker's error may have the same status.
    """
    value = {"default_value": error.status if status is None else status, "runtime_key": "unused"}
    compared: Json = {"status_code_filter": {"comparison": {"op": compares, "value": value}}}
    headers = [_header("x-request-id", "%REQ(X-REQUEST-ID)%"), *(headers or [])]
    body: dict[str, Any] = {"json_format": {"error": error.as_dict()}}
    return {
        "filter": compared if also is None else {"and_filter": {"filters": [compared, also]}},
        **({} if status is None else {"status_code": error.status}),
        "headers_to_add": headers,
        "body_format_override": body,
    }


def _header(name: str, value: str) -> Json:
    return {"header": {"key": name, "value": value}, "append_action": "ADD_IF_ABSENT"}
