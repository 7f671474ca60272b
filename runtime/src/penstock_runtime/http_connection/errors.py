"""Errors that a connection itself answers, before or without an app."""

from http import HTTPStatus
from secrets import token_hex

from penstock_runtime.openai_errors import ApiError

NO_RETRY = (("x-should-retry", "false"),)
"""Headers of an error that a retry cannot avoid."""


def not_http() -> ApiError:
    """Return the error for bytes that are not a request."""
    return ApiError(400, "this is not an HTTP/1.1 request", headers=NO_RETRY)


def connect_unsupported() -> ApiError:
    """Return the error for a client that requests a tunnel."""
    return ApiError(405, "CONNECT is not supported", code="method_not_allowed", headers=NO_RETRY)


def head_too_large(head_bytes: int) -> ApiError:
    """Return the error for a head over the bound."""
    return ApiError(
        431,
        f"the request's headers are over the bound of {head_bytes} bytes",
        code="request_too_large",
        headers=NO_RETRY,
    )


def head_late(head_s: float) -> ApiError:
    """Return the error for a head that did not arrive in time."""
    return ApiError(408, f"the request's headers did not arrive within {head_s:g} s", "timeout_error")


def too_many_connections() -> ApiError:
    """Return the error for a connection over the bound."""
    return ApiError(503, "too many connections", "server_error", headers=(("retry-after", "1"),))


def last_response(error: ApiError) -> bytes:
    """Return an error as the last response of a connection. The request's own id may not have been read."""
    body = error.body()
    lines = [
        f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
        f"x-request-id: {token_hex(16)}",
        *(f"{name}: {value}" for name, value in error.headers),
        "\r\n",
    ]
    return "\r\n".join(lines).encode() + body
