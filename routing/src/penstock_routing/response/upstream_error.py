"""Error responses of a replica or its engine, which are passed to the client."""

from dataclasses import dataclass
from typing import Any

import orjson
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError

LONGEST_REASON = 2000
"""Most characters of an engine's message that is not in OpenAI's format."""


@dataclass(eq=False, slots=True)
class UpstreamError(Exception):
    """An error response of a replica or its engine: status, and a body in OpenAI's format."""

    status: int
    body: bytes


def upstream_error(end: wire.Failed) -> UpstreamError:
    """Return a failure as a response in OpenAI's format, even if the replica's body has another one."""
    status = end.status if 400 <= end.status <= 599 else 502
    return UpstreamError(status, error_body(end))


def error_body(end: wire.Failed) -> bytes:
    """Return the failure as `{"error": …}`, on one line.

    Of an error of the client in another common format, the message is kept.
    """
    reason = None
    try:
        answer = orjson.loads(end.body)
        if isinstance(answer, dict):
            if isinstance(answer.get("error"), dict):
                return orjson.dumps(answer)
            reason = _reason(answer)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # orjson reads deeper nesting than it writes
        pass
    if reason and 400 <= end.status < 500:
        return ApiError(end.status, reason).body()
    return ApiError(end.status, "the engine failed to serve this request", type="server_error").body()


def _reason(answer: dict[str, Any]) -> str | None:
    """Return the message of an error in the format of an engine or of FastAPI; None without one."""
    texts = [answer.get(field) for field in ("error", "message", "detail")]
    return next((text[:LONGEST_REASON] for text in texts if isinstance(text, str) and text), None)
