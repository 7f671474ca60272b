"""Error responses of a replica or its engine, which are passed to the client."""

from dataclasses import dataclass

import orjson
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError


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
    """Return the failure as `{"error": …}`, on one line."""
    try:
        answer = orjson.loads(end.body)
        if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
            return orjson.dumps(answer)
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):  # orjson reads deeper nesting than it writes
        pass
    return ApiError(end.status, "the engine failed to serve this request", type="server_error").body()
