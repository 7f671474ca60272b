"""Errors in OpenAI's JSON format, which its clients expect."""

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(eq=False, slots=True)  # not frozen: whoever re-raises an exception writes its traceback
class ApiError(Exception):
    """An answer that is an error.

    status: HTTP status.
    type: one word for programs, like `invalid_request_error`.
    param: the field or header that is wrong, where one is.
    code: a narrower word, where there is one.
    headers: beside content-type, like `retry-after`.
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
