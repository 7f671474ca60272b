"""A stream that continues when its replica is lost.

To the code that writes the answer, this is one upstream request that is never lost. The replica's stream is
recorded (`transcript`). When the replica is lost, a continuation (`continued_body`) is placed like any
request: replicas in order, then best effort. Its events are written as the rest of the answer
(`continued_events`).

The request's deadlines do not change: token k is due at arrival + TTFT + k·TPOT, which is therefore the
deadline of the first token of a continuation after k tokens. Each move of a request counts against
`maxMoves`, and a replica that is lost with a continuation is not tried again within the same move. While no
replica is in service, it waits for one, the lost one included.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import orjson
import structlog
from penstock_core.domain.slo import Targets
from penstock_core.timing.time_model import TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.upstream_request import End, Lost, Received, Relay
from penstock_routing.request.generation_request import GenerationRequest, slo_with
from penstock_routing.request.outcome import Outcome
from penstock_routing.request.request_body import INLINE_BYTES
from penstock_routing.response.upstream_error import UpstreamError
from penstock_runtime.clock import monotonic
from penstock_runtime.openai_errors import ApiError

from penstock_router.moving.continued_body import continued_body, tokens_left
from penstock_router.moving.continued_events import ContinuedEvents, NotAContinuation, closing_events
from penstock_router.moving.eligibility import Fields, why_fixed
from penstock_router.moving.transcript import Transcript
from penstock_router.observability.move_metrics import MoveCause, MoveMetrics, MoveOutcome
from penstock_router.routing.placement import Placed, Placement

log = structlog.get_logger()


class ReplicaLoss(NamedTuple):
    """The cause of the end of an incomplete stream. message: text for the client."""

    cause: MoveCause
    message: str


ENGINE_LOST = ReplicaLoss(MoveCause.ENGINE_LOST, "the engine was lost while it answered")


UNFINISHED = "\ufffd"
"""Last character of a text that ends inside a character."""

TAIL_TOKENS = 24
"""Tokens that are converted to text, to see whether it ends with a whole character."""


@dataclass(frozen=True, slots=True)
class Mover:
    """Moves streams of one router to other replicas.

    max_moves: most moves of one request.
    time_model: returns the model for slowdown targets; None before any replica has sent one.
    """

    placement: Placement
    max_moves: int
    time_model: Callable[[], TimeModel | None]
    metrics: MoveMetrics

    def follow(
        self, request: GenerationRequest, placed: Placed, outcome: Outcome, on_overflow: Callable[[], None]
    ) -> "MovableAnswer":
        """Return the answer of a request that has been placed."""
        return MovableAnswer(self, request, placed, outcome, on_overflow)


class MovableAnswer:
    """An answer that may be continued on other replicas, with the interface of an `UpstreamRequest`."""

    def __init__(
        self,
        mover: Mover,
        request: GenerationRequest,
        placed: Placed,
        outcome: Outcome,
        on_overflow: Callable[[], None],
    ) -> None:
        self._mover, self._request, self._outcome = mover, request, outcome
        self._placed, self._on_overflow = placed, on_overflow
        self._transcript = Transcript()
        self._events: ContinuedEvents | None = None
        self._loss: ReplicaLoss | None = None
        self._end: End | None = None
        self._closing = b""

    @property
    def end(self) -> End | None:
        """The end of the answer, with final counts of all of it; None until then."""
        if self._end is not None or self._loss is not None:
            return self._end
        end = self._placed.upstream.end
        if self._events is not None and isinstance(end, wire.Finished):
            return self._events.finished(end)
        return end

    def take(self) -> Received:
        """Return all output since the last `take`, and the end if the answer has ended."""
        if self._end is not None:
            closing, self._closing = self._closing, b""
            return Received(closing, 0, self._end)
        received = self._placed.upstream.take()
        data, transcript = self._read(received.data), self._transcript
        if transcript.done or self._end is not None:
            return Received(data, received.tokens, self.end)
        self._loss = _loss(transcript, received.end, self._placed.link.name)
        if self._loss is not None:
            return Received(data, received.tokens, None)
        if received.end is not None:
            data += transcript.take_rest()
        return Received(data, received.tokens, self.end)

    async def changed(self, relay: Relay | None = None) -> None:
        """Wait for output since the last `take` or `changed` that `relay` has not written, or for the end."""
        if self._loss is not None:
            await self._move(self._loss)
            self._loss = None
        elif relay is None or self._end is not None:
            await self._placed.upstream.changed()
        else:
            await self._placed.upstream.changed(self._relay_through(relay))

    def close(self) -> None:
        """Cancel the request at the replica, and release buffered output."""
        self._placed.link.abandon(self._placed.upstream)
        self._placed.upstream.release()

    def _relay_through(self, relay: Relay) -> Relay | None:
        """Return a function that forwards ordinary events, and leaves all others to `take`."""
        events = self._events
        if self._transcript.opaque:
            return relay
        if events is None:
            return self._transcript.relay_through(relay)
        return self._transcript.relay_through(lambda data, tokens: relay(events.rewritten(data), tokens))

    def _read(self, data: bytes) -> bytes:
        """Record output, and return what the client gets of it."""
        events = self._transcript.read(data) if data else []
        if self._events is None:
            return b"".join(events)
        try:
            return b"".join(map(self._events.rewritten, events))
        except NotAContinuation:
            log.error("not a continuation", request=self._request.id, replica=self._placed.link.name)
            self._fail(ENGINE_LOST, "another engine started it again from the beginning")
            return b""

    async def _move(self, loss: ReplicaLoss) -> None:
        """Continue the answer on another replica, or end it."""
        body = await self._parsed()
        if body is None:
            self._give_up(loss, MoveOutcome.FIXED, "its body cannot be read again")
            return
        why = self._why_fixed(body)
        if why is not None:
            self._give_up(loss, MoveOutcome.FIXED, why)
            return
        avoided, lost_s = self._placed.link.name, monotonic()
        if self._transcript.uncertain_tokens():
            avoided = await self._mover.placement.replica_to_avoid(avoided, lost_s)
        kept_ids = await self._kept_ids(avoided)
        if self._is_whole(body, len(kept_ids)):
            self._close_answer(body)
            self._count(loss, MoveOutcome.MOVED)
        else:
            await self._place(loss, body, kept_ids, avoided, lost_s)

    async def _kept_ids(self, avoided: str) -> list[int]:
        """Return the answer's tokens whose text the client has.

        The last tokens may have no text yet, because their character is incomplete.
        """
        transcript, kept_ids = self._transcript, self._transcript.kept_ids()
        unsure = transcript.uncertain_tokens()
        for end in range(len(kept_ids), len(kept_ids) - unsure - 1, -1) if unsure else ():
            tail = [*transcript.prompt_ids, *kept_ids[:end]][-TAIL_TOKENS:]
            text = await self._mover.placement.detokenize(tail, avoided)
            if text is None:
                break
            if not text.endswith(UNFINISHED):
                return kept_ids[:end]
        return kept_ids

    async def _place(
        self, loss: ReplicaLoss, body: Fields, kept_ids: list[int], avoided: str, lost_s: float
    ) -> None:
        """Place the continuation, as often as the request may be moved.

        Only the last replica that was lost is excluded: others may have come back while a lost one was tried.
        """
        continued = self._continued(body, kept_ids)
        while self._outcome.moves < self._mover.max_moves:
            self._outcome.moves += 1
            try:
                found = await self._mover.placement.place_again(continued, self._on_overflow, avoided, lost_s)
            except UpstreamError as error:
                log.warning("continuation refused", request=self._request.id, status=error.status)
                found = None
            if isinstance(found, Placed):
                self._adopt(found, kept_ids)
                self._count(loss, MoveOutcome.MOVED)
                return
            if found is None or not found.lost:
                served = found is None or found.in_service
                why = "no other replica takes it" if served else "no replica is in service"
                self._give_up(loss, MoveOutcome.REFUSED, why)
                return
            avoided = found.lost
            self._count(loss, MoveOutcome.LOST)
        self._give_up(loss, MoveOutcome.SPENT, f"it has been moved {self._outcome.moves} times")

    def _adopt(self, placed: Placed, kept_ids: list[int]) -> None:
        """Read the rest of the answer from another replica."""
        self.close()
        self._placed = placed
        chat = self._request.endpoint == wire.ENDPOINT_CHAT_COMPLETIONS
        if self._transcript.begun:
            self._events = ContinuedEvents(self._transcript.head(), chat, len(kept_ids))
        self._transcript.continue_after(kept_ids)
        times_s = self._outcome.token_times_s
        if times_s:
            self._mover.metrics.silence.observe(monotonic() - times_s[-1])
        del times_s[max(len(kept_ids), 1) :]  # the continuation repeats tokens without text

    def _continued(self, body: Fields, kept_ids: list[int]) -> GenerationRequest:
        """Return the request for the rest of the answer; without any tokens, the original request."""
        request = self._request
        if not kept_ids:
            return request
        return request._replace(
            endpoint=wire.ENDPOINT_COMPLETIONS,
            body=continued_body(request.endpoint, body, self._transcript.prompt_ids, kept_ids),
            targets=self._targets(len(kept_ids)),
        )

    def _targets(self, kept_tokens: int) -> Targets:
        """Return targets with which the next token's deadline does not change."""
        request, model = self._request, self._mover.time_model()
        slo = slo_with(request.tier.slo, request.targets)
        ttft_s = slo.ttft_s
        if slo.ttft_slowdown is not None and model is not None:
            ttft_s = slo.ttft_slowdown * model.prefill_seconds(len(self._transcript.prompt_ids))
        if ttft_s is None:
            return request.targets
        spent_s = monotonic() - request.arrival_s
        due_s = ttft_s + (spent_s if slo.tpot_s is None else kept_tokens * slo.tpot_s)
        return replace(request.targets, ttft_s=due_s)

    async def _parsed(self) -> Fields | None:
        """Return the client's parsed body; None if it has a number or a character that only others read."""
        body = self._request.body
        if len(body) <= INLINE_BYTES:
            return _parsed(body)
        return await asyncio.to_thread(_parsed, body)

    def _why_fixed(self, body: Fields) -> str | None:
        """Return why the answer cannot be continued; None if it can."""
        transcript = self._transcript
        if transcript.opaque:
            return "its engine does not report token ids"
        if transcript.thinks:
            return "its model was thinking"
        return why_fixed(self._request.endpoint, body)

    def _is_whole(self, body: Fields, kept_tokens: int) -> bool:
        """Return whether the client has all tokens of the answer, so that only its end is missing."""
        left = tokens_left(self._request.endpoint, body, kept_tokens)
        return self._transcript.finished or (left is not None and left <= 0)

    def _close_answer(self, body: Fields) -> None:
        """End an answer whose tokens the client has all received."""
        transcript = self._transcript
        prompt_tokens, tokens = len(transcript.prompt_ids), transcript.tokens()
        options = body.get("stream_options") or {}
        requested = bool(options.get("include_usage")) and not transcript.usage_sent
        self._closing = closing_events(
            transcript.head(),
            chat=self._request.endpoint == wire.ENDPOINT_CHAT_COMPLETIONS,
            finished=transcript.finished,
            usage=(prompt_tokens, tokens) if requested else None,
        )
        self._end = wire.Finished(prompt_tokens=prompt_tokens, completion_tokens=tokens)

    def _give_up(self, loss: ReplicaLoss, result: MoveOutcome, why: str) -> None:
        self._count(loss, result)
        self._fail(loss, why)

    def _count(self, loss: ReplicaLoss, result: MoveOutcome) -> None:
        self._mover.metrics.moves.labels(loss.cause.value, result.value).inc()
        log.info("stream move", request=self._request.id, cause=loss.cause.value, outcome=result.value)

    def _fail(self, loss: ReplicaLoss, why: str) -> None:
        """End the answer with an error."""
        message = f"{loss.message}, and the answer cannot be continued on another replica: {why}"
        code = "engine_lost" if loss.cause is MoveCause.ENGINE_LOST else "replica_lost"
        body = ApiError(502, message, type="server_error", code=code).body()
        self._end = wire.Failed(failure=wire.FAILURE_ENGINE_LOST, status=502, body=body)


def _parsed(body: bytes) -> Fields | None:
    try:
        parsed: Fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    return parsed


def _loss(transcript: Transcript, end: End | None, replica: str) -> ReplicaLoss | None:
    """Return the loss that ended a stream; None if it has not ended, or ended in another way."""
    if isinstance(end, Lost):
        cause = MoveCause.DRAINED if end.drained else MoveCause.REPLICA_LOST
        return ReplicaLoss(cause, f"replica {replica} was lost while it answered")
    if isinstance(end, wire.Failed) and end.failure == wire.FAILURE_ENGINE_LOST:
        return ENGINE_LOST
    if transcript.failure:
        return ReplicaLoss(MoveCause.ENGINE_LOST, "the engine failed while it answered")
    return None
