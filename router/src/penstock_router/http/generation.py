"""One generating request, from its head to the last byte of its answer.

    head ── key, targets ──▶ body ── model, tier ──▶ walk (placement) ──▶ answer: a stream, or one piece

Nothing goes to the client before a replica has accepted the request and brought something for it. From then
on a stream's only way to fail is an event in it.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NamedTuple

import structlog
from penstock_core.timing.time_model import TimeModel
from penstock_pool import Application
from penstock_proto import replica_pb2 as wire
from penstock_runtime.asgi import (
    EVENT_STREAM,
    JSON,
    ClientGone,
    Header,
    Receive,
    Scope,
    Send,
    answer,
    body_too_large,
    read_body,
)
from penstock_runtime.openai_errors import ApiError

from penstock_router.applications.api_keys import Keys
from penstock_router.applications.rate_limits import Admission, RateLimits
from penstock_router.applications.tier_selection import application_of, own_targets, tier_of
from penstock_router.applications.token_usage import Usage
from penstock_router.http.client_connection import ClientConnection
from penstock_router.observability.access_log import log_ended
from penstock_router.observability.metrics import Metrics
from penstock_router.replicas.replica_set import ReplicaSet
from penstock_router.replicas.session_writer import Submission
from penstock_router.replicas.upstream_request import Lost, UpstreamRequest
from penstock_router.request import request_head
from penstock_router.request.byte_budget import BodyBytes, ByteBudget
from penstock_router.request.outcome import Ending, Outcome
from penstock_router.request.request_body import BodyReader
from penstock_router.routing.placement import Placed, Placement, error_body
from penstock_router.routing.waiting_room import WaitingRoom
from penstock_router.settings import Settings

LAST_EVENT = b"data: [DONE]\n\n"
"""Ends a stream in OpenAI's protocol. Clients close on it, so the response must end with it."""

log = structlog.get_logger()

FINISH_S = 5.0
"""How long a replica may take to say its figures once the answer is complete."""


class Call(NamedTuple):
    """One HTTP request.

    turn: one more than that of the one before it.
    """

    scope: Scope
    receive: Receive
    send: Send
    endpoint: "wire.Endpoint.ValueType"
    request_id: str
    turn: int


@dataclass(frozen=True, slots=True)
class Generation:
    """What serving takes.

    reader: of bodies.
    time_model: the one that slowdowns are of, or None before any replica has told.
    budget: of bytes held over all requests.
    """

    settings: Settings
    keys: Keys
    reader: BodyReader
    limits: RateLimits
    usage: Usage
    replica_set: ReplicaSet
    metrics: Metrics
    room: WaitingRoom
    time_model: Callable[[], TimeModel | None]

    budget: ByteBudget

    async def serve(self, call: Call) -> None:
        """Answer it. Raises ApiError, UpstreamError, ClientGone before the first byte, nothing after it."""
        with BodyBytes(self.budget) as body_bytes:
            try:
                accepted = await self._accept(call, body_bytes)
            except ApiError as error:
                self.metrics.refused(error.status)
                raise
            await self._carry(call, accepted)

    async def _accept(self, call: Call, body_bytes: BodyBytes) -> "_Accepted":
        """Read the request. Raises ApiError where it is wrong, or over its application's limits."""
        head = request_head.head_of(call.scope)
        application = application_of(self.keys, head)
        raw = await self._body(head, call.receive, body_bytes)
        arrival_s = monotonic()
        asked = await self.reader.read(call.endpoint, raw)
        if asked.model != self.settings.model:
            raise unknown_model(asked.model, self.settings.model)
        tier = tier_of(self.settings, application, request_head.tier_name(head), asked.service_tier)
        own = own_targets(tier, head)
        submission = Submission(call.request_id, call.endpoint, raw, tier.name, arrival_s, own)
        outcome = Outcome(tier, own, arrival_s, asked.stream)
        admission = await self.limits.enter(application, self.usage.expected(application, len(raw), asked))
        return _Accepted(submission, outcome, application, admission)

    async def _body(self, head: request_head.Head, receive: Receive, body_bytes: BodyBytes) -> bytes:
        request_head.reject_encoding(head)
        bound_bytes = self.settings.max_body_bytes
        if (request_head.content_length(head) or 0) > bound_bytes:
            raise body_too_large(bound_bytes)
        return await read_body(receive, bound_bytes, self.settings.body_timeout_s, body_bytes.add)

    async def _carry(self, call: Call, accepted: "_Accepted") -> None:
        """Have it answered, and count how that went."""
        outcome, client = accepted.outcome, ClientConnection(call.scope, call.receive)
        try:
            self.metrics.demand.arrived(outcome.tier.name)
            async with client:
                await self._answer(call, accepted, client)
        except ClientGone:
            if outcome.ending is not Ending.CLIENT_SLOW:
                outcome.ending = Ending.CLIENT_GONE
            raise
        finally:
            if client.stalled:
                outcome.ending = Ending.CLIENT_SLOW
            outcome.ended_s = outcome.ended_s or monotonic()
            self._count(accepted)

    def _count(self, accepted: "_Accepted") -> None:
        """Count it. Its answer is written, so a fault here must not reach the client, nor hold its place."""
        submission, outcome = accepted.submission, accepted.outcome
        try:
            used_tokens = 0
            try:
                used_tokens = self.usage.ended(accepted.application, outcome, len(submission.body))
            finally:
                accepted.admission.leave(used_tokens)
            self.metrics.ended(outcome, self.time_model())
            log_ended(submission.request_id, outcome)
        except Exception:
            self.metrics.faults.inc()
            log.exception("request not counted", request=submission.request_id)

    async def _answer(self, call: Call, accepted: "_Accepted", client: ClientConnection) -> None:
        submission, outcome = accepted.submission, accepted.outcome

        def overflowed() -> None:
            outcome.ending = Ending.CLIENT_SLOW
            client.abort()

        bound_bytes = self.settings.stream_buffer_bytes if outcome.stream else None
        placement = Placement(
            self.settings,
            self.replica_set,
            self.metrics,
            self.room,
            outcome,
            self.time_model(),
            self.budget,
            bound_bytes,
            overflowed,
        )
        placed = await placement.walk(submission, call.turn)
        headers = _headers(submission.request_id, outcome, placed.link.name) + accepted.admission.headers
        try:
            if outcome.stream:
                await _stream(outcome, placed, client, call.send, headers)
            else:
                await _whole(outcome, placed.upstream, client, call.send, headers)
        finally:
            placed.link.abandon(placed.upstream)
            placed.upstream.release()


@dataclass(frozen=True, slots=True)
class _Accepted:
    """A request that was read and goes to replicas. admission: by its application's limits."""

    submission: Submission
    outcome: Outcome
    application: Application | None
    admission: Admission


async def _whole(
    outcome: Outcome, upstream: UpstreamRequest, client: ClientConnection, send: Send, headers: list[Header]
) -> None:
    received = upstream.take()
    client.answered()
    await answer(send, received.data, content_type=JSON, headers=headers)
    outcome.ended_s = monotonic()
    if isinstance(received.end, wire.Finished):
        outcome.ending, outcome.finished = Ending.ANSWERED, received.end


async def _stream(
    outcome: Outcome, placed: Placed, client: ClientConnection, send: Send, headers: list[Header]
) -> None:
    upstream, time, times_s = placed.upstream, monotonic, outcome.token_times_s
    fixed = [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": fixed + headers})
    while True:
        data, tokens, end = upstream.take()
        if tokens == 1:
            times_s.append(time())
        elif tokens:
            times_s.extend([time()] * tokens)
        if end is not None or data.endswith(LAST_EVENT):
            break
        if data:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await upstream.changed()
    client.answered()
    complete = data.endswith(LAST_EVENT) or isinstance(end, wire.Finished)
    await send({"type": "http.response.body", "body": data if complete else data + _last_words(end, placed)})
    outcome.ended_s = time()
    if complete:
        outcome.ending = Ending.ANSWERED
        outcome.finished = await _figures(upstream)


async def _figures(upstream: UpstreamRequest) -> wire.Finished | None:
    """What the replica says of a complete answer. It may come a frame later than the last byte."""
    try:
        async with asyncio.timeout(FINISH_S):
            while upstream.end is None:
                await upstream.changed()
    except TimeoutError:
        return None
    return upstream.end if isinstance(upstream.end, wire.Finished) else None


def _last_words(end: object, placed: Placed) -> bytes:
    """The event that ends a stream which cannot go on."""
    if isinstance(end, wire.Failed):
        return b"data: " + error_body(end) + b"\n\n"
    if isinstance(end, Lost):
        said = f"replica {placed.link.name} was lost while it answered"
        return ApiError(502, said, type="server_error", code="replica_lost").event()
    return b""


def _headers(request_id: str, outcome: Outcome, replica: str) -> list[Header]:
    values = {
        "x-request-id": request_id,
        "x-penstock-tier": outcome.tier.name,
        "x-penstock-verdict": outcome.verdict,
        "x-penstock-replica": replica,
        "x-penstock-hops": str(outcome.hops),
    }
    return [(name.encode(), value.encode()) for name, value in values.items()]


def unknown_model(asked: str, served: str) -> ApiError:
    """404, as OpenAI's clients know it."""
    return ApiError(
        404,
        f"the model '{asked[:128]}' does not exist; this pool serves '{served}'",
        param="model",
        code="model_not_found",
    )
