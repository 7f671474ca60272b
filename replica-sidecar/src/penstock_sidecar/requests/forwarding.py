"""Forwards accepted requests to the engine, and its answers to the sessions.

Each request has a task. Output of the engine is counted, added to the session's outbox and recorded in the
mirror, in this order, within the turn of the event loop that reads it, without waking the task.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog
from penstock_core.domain.request_lifecycle import State
from penstock_proto.sse import EngineUsage
from penstock_runtime.clock import monotonic
from penstock_runtime.engine.answers import (
    OTHER_KIND_STATUS,
    CutShort,
    OtherKind,
    check_kind,
    read_stream,
    read_whole,
)
from penstock_runtime.engine.connection import EngineGone
from penstock_runtime.engine.http_client import FULL, AnswerTooLong, EngineResponse

from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.engine.usage_strip import UsageStrip
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.requests.client_body import ClientBody
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.requests.gate import Gate
from penstock_sidecar.requests.replica_request import ReplicaRequest
from penstock_sidecar.requests.tickets import Tickets, slo_fields

log = structlog.get_logger()

BODY_REFUSED = frozenset({400, 422})
"""Statuses of an engine that does not accept a body."""


class BodyRefused(Exception):
    """The engine's rejection of a body with additions. It may accept the client's own body."""


class EngineBody(NamedTuple):
    """A body for the engine. ids, usage: whether it requests these in addition to the client's own body."""

    body: bytes
    ids: bool = False
    usage: bool = False


class Forwarder:
    """Sends accepted requests to the engine and passes its answers on.

    reads_fields: whether the engine reads SLO fields from a request's `vllm_xargs`.
    tickets: prove to an engine that a request was accepted here.
    answer_bytes: largest answer that is not streamed.
    engine_lost: called when a request has lost its connection to the engine.
    """

    def __init__(
        self,
        engine: EngineClient,
        mirror: ReplicaMirror,
        gate: Gate,
        faults: Faults,
        *,
        reads_fields: bool,
        tickets: Tickets,
        answer_bytes: int,
        engine_lost: Callable[[], None],
    ) -> None:
        self._tickets = tickets
        self._engine, self._mirror, self._gate, self._faults = engine, mirror, gate, faults
        self._reads_fields, self._answer_bytes = reads_fields, answer_bytes
        self._engine_lost = engine_lost
        self._now_s = monotonic
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, request: ReplicaRequest) -> None:
        """Forward an accepted request in a new task."""
        self._gate.hold(request.keys)
        request.task = task = asyncio.create_task(self._forward(request))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def closed(self) -> None:
        """Wait until every task has ended."""
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _forward(self, request: ReplicaRequest) -> None:
        with self._faults.of(request, "forwarding"):
            assert request.body is not None
            await self._gate.wait_for_turn(request.key)
            try:
                await self._send_and_read(request, request.body)
            except EngineGone as gone:
                request.engine_lost()
                log.warning("engine lost", request=request.request_id, cause=str(gone))
                self._engine_lost()
            except CutShort:
                log.warning("answer cut short", request=request.request_id)
                request.engine_lost()
            except OtherKind as other:
                log.warning("answer of another kind", request=request.request_id)
                request.engine_refused(OTHER_KIND_STATUS, other.body)
            except AnswerTooLong as error:
                log.error("answer too long", request=request.request_id, error=str(error))
                request.internal_error()

    async def _send_and_read(self, request: ReplicaRequest, body: ClientBody) -> None:
        """Send the body with additions, and if the engine rejects it, with fewer ones."""
        if self._reads_fields:
            now_s = self._now_s()
            fields = slo_fields(request, request.verdict, now_s)
            await self._send(request, body.with_fields(fields | self._tickets.field(request, fields, now_s)))
            return
        bodies = self._bodies(body)
        for number, attempt in enumerate(bodies):
            strip = UsageStrip() if attempt.usage else None
            try:
                await self._send(request, attempt.body, strip, last=attempt is bodies[-1])
            except BodyRefused:
                continue
            if number and request.state is State.FINISHED:
                self._note_refused(bodies[number - 1], attempt)
            return

    def _bodies(self, body: ClientBody) -> list["EngineBody"]:
        """Return the bodies to try, each after the previous one is rejected. The client's own is the last."""
        own, engine = body.without_ids(), self._engine
        bodies: list[EngineBody] = []
        for one in [body, own] if body.requests_ids and engine.takes_token_ids else [own]:
            usage = one.requesting_usage() if engine.takes_stream_options else None
            if usage is not None or one is not own:
                bodies.append(EngineBody(usage or one.raw, ids=one is not own, usage=usage is not None))
        return [*bodies, EngineBody(own.raw)]

    def _note_refused(self, refused: "EngineBody", taken: "EngineBody") -> None:
        """Stop making the addition that the engine has rejected."""
        if refused.ids and not taken.ids:
            self._engine.takes_token_ids = False
        else:
            self._engine.takes_stream_options = False

    async def _send(
        self, request: ReplicaRequest, body: bytes, strip: UsageStrip | None = None, *, last: bool = True
    ) -> None:
        """Send a body and read the answer. The request has ended on return.

        Raises BodyRefused if the engine does not accept the body and it is not the `last`.
        strip: removes usage that only the sidecar has requested from the stream.
        """
        async with self._engine.answer(request.endpoint, body, request.request_id) as answer:
            if answer.status in FULL:
                request.engine_full()
                return
            if answer.status != 200:
                if not last and answer.status in BODY_REFUSED:
                    raise BodyRefused
                request.engine_refused(answer.status, await answer.body(self._answer_bytes))
                return
            await check_kind(answer, request.streams, self._answer_bytes)
            read = self._stream(request, answer, strip) if answer.streamed else self._whole(request, answer)
            usage = await read
        self.finish(request, usage)

    async def _stream(
        self, request: ReplicaRequest, answer: EngineResponse, strip: UsageStrip | None
    ) -> EngineUsage | None:
        def thinking_ended(tokens: int) -> None:
            self._mirror.thinking_ended(request.key, tokens, request.last_s)

        return (await read_stream(answer, partial(self._pass_on, request), thinking_ended, strip)).usage

    async def _whole(self, request: ReplicaRequest, answer: EngineResponse) -> EngineUsage | None:
        body, usage = await read_whole(answer, self._answer_bytes)
        self._pass_on(request, body, usage.completion_tokens if usage else 0)
        return usage

    def _pass_on(self, request: ReplicaRequest, data: bytes, tokens: int) -> None:
        """Send output to the router, and record its tokens."""
        now_s = self._now_s()
        if request.sequences == 1:  # the usual case, for each token
            new_tokens = request.output(data, tokens, self._mirror.tokens_out(request.key), now_s)
            self._mirror.passed(request.key, new_tokens, now_s)
        else:
            reported_tokens = sum(map(self._mirror.tokens_out, request.keys))
            new_tokens = request.output(data, tokens, reported_tokens, now_s)
            for key, share in _shares(request, new_tokens):
                self._mirror.passed(key, share, now_s)
        self._gate.passed(request.key, new_tokens, now_s)

    def finish(self, request: ReplicaRequest, usage: EngineUsage | None) -> None:
        """End a request whose answer is complete. Without usage, the tokens that were forwarded count."""
        assert request.job is not None
        usage = usage or EngineUsage(request.job.request.prompt_tokens, request.tokens)
        tokens = max(request.tokens, usage.completion_tokens) // request.sequences
        times_s = () if request.streams else self._mirror.token_times_s(request.key, tokens, request.last_s)
        request.finished(usage, times_s, self._mirror.thinking_tokens(request.key))


def _shares(request: ReplicaRequest, new_tokens: int) -> list[tuple[str, int]]:
    """Distribute new tokens over a request's answers in turn, because the stream mixes them."""
    after, keys = request.tokens, request.keys
    before, last = after - new_tokens, len(keys) - 1
    return [
        (key, (after + last - at) // len(keys) - (before + last - at) // len(keys))
        for at, key in enumerate(keys)
    ]
