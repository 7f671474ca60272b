"""The parts of ASGI that Penstock's processes use, without a framework on the token path.

An app raises `ApiError` to answer with an error: `with_errors` writes it in OpenAI's format, as a response if
nothing has been sent, otherwise as the stream's last event. Any other exception of an app is a defect: it is
logged with its traceback, and the client gets a 500 in the same format, without the traceback.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

import structlog

from penstock_runtime.openai_errors import ApiError

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"

PIECE_BYTES = 65536
"""Bytes of a whole response that are written at once; as many as a connection's buffer takes."""

BODY_S = 30.0
"""Default timeout for a body to arrive."""

log = structlog.get_logger()


class ClientGone(Exception):
    """The client closed its connection before its request was complete."""


async def answer(
    send: Send, body: bytes, status: int = 200, content_type: bytes = JSON, headers: Iterable[Header] = ()
) -> None:
    """Send a whole response.

    A long one is sent in pieces, as the client reads it; at most one piece is buffered.
    """
    fixed = [(b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    rest: bytes | memoryview = body
    while len(rest) > PIECE_BYTES:
        rest = memoryview(rest)
        await send({"type": "http.response.body", "body": rest[:PIECE_BYTES], "more_body": True})
        rest = rest[PIECE_BYTES:]
    await send({"type": "http.response.body", "body": rest})


async def answer_error(send: Send, error: ApiError) -> None:
    """Send an error as a whole response."""
    headers = [(name.encode(), value.encode()) for name, value in error.headers]
    await answer(send, error.body(), error.status, headers=headers)


async def read_body(
    receive: Receive,
    max_bytes: int,
    timeout_s: float = BODY_S,
    hold: Callable[[int], None] = lambda more_bytes: None,
) -> bytes:
    """Return the request's body. Raises ApiError 413 over `max_bytes`, 408 after `timeout_s`; ClientGone.

    hold: called with the length of each piece before it is stored; its exception ends the reading.
    """
    chunks: list[bytes] = []
    size_bytes, more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while more:
                chunk, more = await _next_chunk(receive)
                size_bytes += len(chunk)
                if size_bytes > max_bytes:
                    raise body_too_large(max_bytes)
                hold(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise _late(timeout_s) from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def body_too_large(max_bytes: int) -> ApiError:
    """Return an error 413 that also closes the connection."""
    return ApiError(
        413,
        f"the request's body is over the bound of {max_bytes} bytes",
        code="request_too_large",
        headers=(("connection", "close"),),
    )


def _late(timeout_s: float) -> ApiError:
    return ApiError(
        408,
        f"the request's body did not arrive within {timeout_s:g} s",
        type="timeout_error",
        headers=(("connection", "close"),),
    )


async def _next_chunk(receive: Receive) -> tuple[bytes, bool]:
    """Return a piece of the body, and whether there is more."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGone
    return message.get("body", b""), message.get("more_body", False)


def with_errors(app: App) -> App:
    """Wrap an app so that every error that it raises is answered in OpenAI's format."""

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        def watched(message: Message) -> Awaitable[None]:  # no coroutine, because every token passes here
            nonlocal started
            started = True
            return send(message)

        try:
            await app(scope, receive, watched)
        except ClientGone:
            if not started:  # no client reads it; it only ends the response
                await answer_error(send, ApiError(400, "the client went away"))
        except ApiError as error:
            await _end_with(error, send, started)
        except asyncio.CancelledError:
            await _end_with(ApiError(503, "the server stopped", type="server_error"), send, started)
        except Exception:
            log.exception("request failed", path=scope["path"])
            await _end_with(ApiError(500, "internal error", type="server_error"), send, started)

    return guarded


async def _end_with(error: ApiError, send: Send, started: bool) -> None:
    if started:
        await send({"type": "http.response.body", "body": error.event()})
    else:
        await answer_error(send, error)
