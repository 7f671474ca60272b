"""Writes an accepted request's answer, as a stream of tokens or in one piece.

Nothing is written to the client before a replica has sent output. After that, a stream can only report a
failure by an event. While the client keeps up, the session's reader writes tokens without waking the
request's task (`UpstreamRequest.changed`).
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from penstock_proto import replica_pb2 as wire
from penstock_runtime.clock import monotonic
from penstock_runtime.http_request import EVENT_STREAM, Header
from penstock_runtime.openai_errors import ApiError

from penstock_routing.replicas.upstream_request import End, Lost, Received, Relay
from penstock_routing.request.outcome import Ending, Outcome, add_times
from penstock_routing.response.client_scope import ClientScope
from penstock_routing.response.upstream_error import error_body

LAST_EVENT = b"data: [DONE]\n\n"
"""Last event of a stream in OpenAI's protocol. Clients close the connection when they read it."""

FINISH_S = 5.0
"""Longest wait for the replica's final counts and timings after a complete answer."""

STREAM_HEADERS = ((b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache"))


class AnswerSource(Protocol):
    """The source of an answer: an `UpstreamRequest`, or several in turn."""

    @property
    def end(self) -> End | None:
        """The end of the answer; None until then."""

    def take(self) -> Received:
        """Return all output since the last `take`, and the end if the answer has ended."""

    async def changed(self, relay: Relay | None = None) -> None:
        """Wait for output since the last `take` or `changed` that `relay` has not written, or for the end."""


async def write_answer(
    upstream: AnswerSource, replica: str, outcome: Outcome, client: ClientScope, headers: Iterable[Header]
) -> None:
    """Write a replica's output, and record its times and its end in `outcome`."""
    if outcome.stream:
        await _stream(outcome, upstream, replica, client, headers)
    else:
        await _whole(outcome, upstream, client, headers)


def answer_headers(request_id: str, outcome: Outcome, replica: str) -> list[Header]:
    """Return the headers that describe how a request was served."""
    return [
        (b"x-request-id", request_id.encode()),
        (b"x-penstock-tier", outcome.tier.name.encode()),
        (b"x-penstock-verdict", outcome.verdict.encode()),
        (b"x-penstock-replica", replica.encode()),
        (b"x-penstock-hops", b"%d" % outcome.hops),
    ]


async def _whole(
    outcome: Outcome, upstream: AnswerSource, client: ClientScope, headers: Iterable[Header]
) -> None:
    received = upstream.take()
    client.answered()
    await client.http.answer(received.data, headers=headers)
    outcome.ended_s = monotonic()
    if isinstance(received.end, wire.Finished):
        outcome.ending, outcome.finished = Ending.ANSWERED, received.end


async def _stream(
    outcome: Outcome, upstream: AnswerSource, replica: str, client: ClientScope, headers: Iterable[Header]
) -> None:
    http, times_s = client.http, outcome.token_times_s
    relay = _relay(http.write, times_s)
    http.start(headers=[*STREAM_HEADERS, *headers])
    while True:
        data, tokens, end = upstream.take()
        add_times(times_s, tokens, monotonic())
        if end is not None or data.endswith(LAST_EVENT):
            break
        if data:
            await http.send(data)
        await upstream.changed(relay)
    client.answered()
    complete = data.endswith(LAST_EVENT) or isinstance(end, wire.Finished)
    last = data if complete else data + _error_event(end, replica)
    await http.end(last)
    outcome.ended_s = monotonic()
    if complete:
        outcome.ending = Ending.ANSWERED
        outcome.finished = await _finished(upstream)


def _relay(write: Callable[[bytes], bool], times_s: list[float]) -> Callable[[bytes, int], bool]:
    """Return a function that writes output immediately, unless it ends the stream or the client is slow."""

    def relay(data: bytes, tokens: int) -> bool:
        if data.removesuffix(LAST_EVENT) is not data or not write(data):  # three times as fast as endswith
            return False
        if tokens == 1:
            times_s.append(monotonic())
        elif tokens:
            add_times(times_s, tokens, monotonic())
        return True

    return relay


async def _finished(upstream: AnswerSource) -> wire.Finished | None:
    """Return the replica's final counts and timings, which may arrive a frame after the last byte."""
    if upstream.end is None:
        try:
            async with asyncio.timeout(FINISH_S):
                while upstream.end is None:
                    await upstream.changed()
        except TimeoutError:
            return None
    return upstream.end if isinstance(upstream.end, wire.Finished) else None


def _error_event(end: object, replica: str) -> bytes:
    """Return the event that ends an incomplete stream."""
    if isinstance(end, wire.Failed):
        return b"data: " + error_body(end) + b"\n\n"
    if isinstance(end, Lost):
        message = f"replica {replica} was lost while it answered"
        return ApiError(502, message, type="server_error", code="replica_lost").event()
    return b""
