"""Errors in OpenAI's JSON format, which its clients expect."""

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(eq=False, slots=True)  # not frozen: raising an exception again sets its traceback
class ApiError(Exception):
    """An error response.

    status: HTTP status.
    type: an identifier for programs, like `invalid_request_error`.
    param: the invalid field or header, if there is one.
    code: a more specific identifier, if there is one.
    headers: headers besides content-type, like `retry-after`.
    """

    status: int
    message: str
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    headers: tuple[tuple[str, str], ...] = ()

    def body(self) -> bytes:
        """Return the response body `{"error": {…}}`."""
        return orjson.dumps({"error": self.as_dict()})

    def as_dict(self) -> dict[str, Any]:
        """Return the value of `error`."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def event(self) -> bytes:
        """Return the error as a server-sent event, for a stream that has begun."""
        return b"data: " + self.body() + b"\n\n"


def body_too_large(max_bytes: int) -> ApiError:
    """Return an error 413 that also closes the connection."""
    return ApiError(
        413,
        f"the request's body is over the bound of {max_bytes} bytes",
        code="request_too_large",
        headers=(("connection", "close"),),
    )
