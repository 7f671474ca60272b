"""Reads a request's body within the pool's bounds on bytes and seconds."""

from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import body_too_large

from penstock_routing.request import request_head
from penstock_routing.request.byte_budget import BodyBytes
from penstock_routing.settings import Settings


async def bounded_body(
    http: HttpRequest, head: request_head.Head, settings: Settings, body_bytes: BodyBytes
) -> bytes:
    """Return the body. Raises ApiError (408, 413, 415, 429) and ClientGone."""
    request_head.reject_encoding(head)
    if (request_head.content_length(head) or 0) > settings.max_body_bytes:
        raise body_too_large(settings.max_body_bytes)
    return await http.body(settings.max_body_bytes, settings.body_timeout_s, body_bytes.add)
