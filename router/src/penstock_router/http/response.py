"""Writes a placed request's answer: a stream as its tokens come, or one piece.

Nothing goes to the client before a replica has brought something for it. From then on a stream's only way to
fail is an event in it. Tokens that the client can take are written from the session's reader, without waking
the request's task (`UpstreamRequest.changed`).
"""

import asyncio
from collections.abc import Callable
from time import monotonic

from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.upstream_request import Lost, UpstreamRequest
from penstock_routing.request.generation_request import GenerationRequest
from penstock_routing.request.outcome import Ending, Outcome
from penstock_runtime.http_request import EVENT_STREAM, Header
from penstock_runtime.openai_errors import ApiError

from penstock_router.http.client_scope import ClientScope
from penstock_router.http.intake import Accepted
from penstock_router.routing.placement import Placed, error_body

LAST_EVENT = b"data: [DONE]\n\n"
"""Ends a stream in OpenAI's protocol. Clients close on it, so the response must end with it."""

FINISH_S = 5.0
"""Longest wait for the replica's figures once the answer is complete."""

STREAM_HEADERS = ((b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache"))


async def respond(accepted: Accepted, placed: Placed, outcome: Outcome, client: ClientScope) -> None:
    """Write the answer, and note in `outcome` how it went."""
    request = accepted.request
    headers = [*_headers(request, outcome, placed.link.name), *accepted.admission.headers]
    try:
        if request.stream:
            await _stream(outcome, placed, client, headers)
        else:
            await _whole(outcome, placed.upstream, client, headers)
    finally:
        placed.link.abandon(placed.upstream)
        placed.upstream.release()


async def _whole(
    outcome: Outcome, upstream: UpstreamRequest, client: ClientScope, headers: list[Header]
) -> None:
    received = upstream.take()
    client.answered()
    await client.http.answer(received.data, headers=headers)
    outcome.ended_s = monotonic()
    if isinstance(received.end, wire.Finished):
        outcome.ending, outcome.finished = Ending.ANSWERED, received.end


async def _stream(outcome: Outcome, placed: Placed, client: ClientScope, headers: list[Header]) -> None:
    http, upstream, times_s = client.http, placed.upstream, outcome.token_times_s
    relay = _relay(http.write, times_s)
    http.start(headers=[*STREAM_HEADERS, *headers])
    while True:
        data, tokens, end = upstream.take()
        times_s.extend([monotonic()] * tokens)
        if end is not None or data.endswith(LAST_EVENT):
            break
        if data:
            await http.send(data)
        await upstream.changed(relay)
    client.answered()
    complete = data.endswith(LAST_EVENT) or isinstance(end, wire.Finished)
    last = data if complete else data + _error_event(end, placed.link.name)
    await http.end(last)
    outcome.ended_s = monotonic()
    if complete:
        outcome.ending = Ending.ANSWERED
        outcome.finished = await _figures(upstream)


def _relay(write: Callable[[bytes], bool], times_s: list[float]) -> Callable[[bytes, int], bool]:
    """Return what writes output as it comes, unless it ends the stream or the client is behind."""

    def relay(data: bytes, tokens: int) -> bool:
        if data.endswith(LAST_EVENT) or not write(data):
            return False
        if tokens == 1:
            times_s.append(monotonic())
        elif tokens:
            times_s.extend([monotonic()] * tokens)
        return True

    return relay


async def _figures(upstream: UpstreamRequest) -> wire.Finished | None:
    """Return the replica's figures of a complete answer. They may come a frame later than the last byte."""
    if upstream.end is None:
        try:
            async with asyncio.timeout(FINISH_S):
                while upstream.end is None:
                    await upstream.changed()
        except TimeoutError:
            return None
    return upstream.end if isinstance(upstream.end, wire.Finished) else None


def _error_event(end: object, replica: str) -> bytes:
    """Return the event that ends a stream which cannot go on."""
    if isinstance(end, wire.Failed):
        return b"data: " + error_body(end) + b"\n\n"
    if isinstance(end, Lost):
        said = f"replica {replica} was lost while it answered"
        return ApiError(502, said, type="server_error", code="replica_lost").event()
    return b""


def _headers(request: GenerationRequest, outcome: Outcome, replica: str) -> list[Header]:
    return [
        (b"x-request-id", request.id.encode()),
        (b"x-penstock-tier", request.tier.name.encode()),
        (b"x-penstock-verdict", outcome.verdict.encode()),
        (b"x-penstock-replica", replica.encode()),
        (b"x-penstock-hops", b"%d" % outcome.hops),
    ]
