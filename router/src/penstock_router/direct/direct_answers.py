"""Sends admitted requests to engines directly, and reads their answers.

    sidecar ─verdict, ticket─▶ router ─body, ticket─▶ engine ─answer─▶ router ─▶ client
            ◀─────how it ended─

An answer fills the same `UpstreamRequest` that a session would fill, so its reader sees no difference. Each
request has a task. Output is passed on in the turn of the event loop that reads it, without waking the task.
The sidecar follows progress by the engine's step reports. The router reports how an answer ended; the sidecar
then sends the final counts and timings, which end the request.
"""

import asyncio

import structlog
from penstock_core.domain.verdict import Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_proto.sse import EngineUsage
from penstock_routing.replicas.replica_link import ReplicaLink
from penstock_routing.replicas.upstream_request import End, UpstreamRequest
from penstock_routing.replicas.wire_conversion import INTERNAL
from penstock_routing.request.engine_body import body_with
from penstock_routing.request.generation_request import GENERATES, GenerationRequest
from penstock_runtime.clock import monotonic
from penstock_runtime.engine.answers import (
    ENGINE_LOST,
    LONGEST_ANSWER_BYTES,
    OTHER_KIND_STATUS,
    CutShort,
    OtherKind,
    check_kind,
    read_stream,
    read_whole,
)
from penstock_runtime.engine.connection import EngineGone, EngineUnreachable
from penstock_runtime.engine.http_client import FULL, AnswerTooLong, EngineResponse

from penstock_router.direct.engine_access import EngineAccess

PATHS = {endpoint: path for path, endpoint in GENERATES.items()}

CLOSED = frozenset({401, 403})
"""Statuses of an engine that denies this router access."""

LOST = wire.Failed(failure=wire.FAILURE_ENGINE_LOST, status=ENGINE_LOST.status, body=ENGINE_LOST.body())

log = structlog.get_logger()


class _BufferFull(Exception):
    """The client reads too slowly, so the buffer of its answer is full."""


class DirectAnswers:
    """Answers that one router reads from engines."""

    def __init__(self, access: EngineAccess) -> None:
        self._access = access
        self._tasks: set[asyncio.Task[None]] = set()

    def reaches(self, link: ReplicaLink) -> bool:
        """Return whether a request may be sent to a replica's engine, as far as is known."""
        return self._access.reaches(link)

    def start(self, link: ReplicaLink, upstream: UpstreamRequest, request: GenerationRequest) -> None:
        """Send a request with the `engine_fields` of its verdict, in a task of its own."""
        task = asyncio.create_task(_EngineRequest(self._access, link, upstream, request).run())
        upstream.on_end = task.cancel
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _EngineRequest:
    """A request that the router sends to an engine directly."""

    def __init__(
        self, access: EngineAccess, link: ReplicaLink, upstream: UpstreamRequest, request: GenerationRequest
    ) -> None:
        self._access, self._link = access, link
        self._upstream, self._request = upstream, request

    async def run(self) -> None:
        """Send the request and pass the answer on. A fault ends this request only."""
        try:
            await self._send(self._link.description.engine_endpoint or "")
        except EngineUnreachable as error:
            self._unreachable(str(error))
        except (EngineGone, CutShort) as error:
            log.warning("engine lost", request=self._request.id, cause=str(error))
            self._end(wire.ANSWER_STATE_LOST, LOST)
        except OtherKind as other:
            log.warning("answer of another kind", request=self._request.id)
            self._refused(OTHER_KIND_STATUS, other.body)
        except AnswerTooLong as error:
            log.error("answer too long", request=self._request.id, error=str(error))
            self._end(wire.ANSWER_STATE_REFUSED, INTERNAL)
        except _BufferFull:
            self._link.abandon(self._upstream)
        except Exception:
            log.exception("answer not read", request=self._request.id)
            self._end(wire.ANSWER_STATE_LOST, INTERNAL)

    async def _send(self, endpoint: str) -> None:
        request = self._request
        body = body_with(request.body, self._upstream.engine_fields)
        engine = self._access.engine(endpoint, tls=self._link.description.engine_tls)
        async with engine.post(PATHS[request.endpoint], body, request.id) as answer:
            if answer.status in CLOSED:
                self._unreachable(f"it answers {answer.status}")
            elif answer.status in FULL:
                self._end(wire.ANSWER_STATE_FULL, Rejected(Reason.QUEUE_FULL))
            elif answer.status != 200:
                self._refused(answer.status, await answer.body(LONGEST_ANSWER_BYTES))
            else:
                await check_kind(answer, request.stream, LONGEST_ANSWER_BYTES)
                await (self._stream(answer) if answer.streamed else self._whole(answer))

    async def _stream(self, answer: EngineResponse) -> None:
        begun = False

        def pass_on(data: bytes, tokens: int) -> None:
            nonlocal begun
            self._put(data, tokens)
            if not begun:
                begun = True
                self._report(wire.ANSWER_STATE_BEGUN)

        def thinking_ended(tokens: int) -> None:
            self._report(wire.ANSWER_STATE_BEGUN, thinking_tokens=tokens)

        count = await read_stream(answer, pass_on, thinking_ended)
        self._report_whole(count.tokens, count.usage)

    async def _whole(self, answer: EngineResponse) -> None:
        body, usage = await read_whole(answer, LONGEST_ANSWER_BYTES)
        tokens = usage.completion_tokens if usage else 0
        self._put(body, tokens)
        self._report_whole(tokens, usage)

    def _put(self, data: bytes, tokens: int) -> None:
        """Add output to the client's answer."""
        self._upstream.last_received_s = monotonic()
        if not self._upstream.put(data, tokens):
            raise _BufferFull

    def _report_whole(self, tokens: int, usage: EngineUsage | None) -> None:
        """Report to the sidecar that the answer is complete. It replies with final counts and timings."""
        if usage is None:
            self._report(wire.ANSWER_STATE_WHOLE, tokens=tokens)
            return
        self._report(
            wire.ANSWER_STATE_WHOLE,
            tokens=tokens,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            **({} if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}),
        )

    def _unreachable(self, cause: str) -> None:
        """Leave the request to the sidecar. No output was received."""
        self._access.unreachable(self._link.description.engine_endpoint or "", cause)
        self._report(wire.ANSWER_STATE_UNREACHABLE)

    def _refused(self, status: int, body: bytes) -> None:
        """End the request with the engine's error."""
        failed = wire.Failed(failure=wire.FAILURE_ENGINE_REFUSED, status=status, body=body)
        self._end(wire.ANSWER_STATE_REFUSED, failed)

    def _end(self, state: "wire.AnswerState.ValueType", end: End) -> None:
        """End the request here and at the sidecar."""
        self._report(state)
        self._upstream.on_end = None  # this task is about to end
        self._upstream.finish(end)

    def _report(self, state: "wire.AnswerState.ValueType", **counts: int) -> None:
        self._link.answered(self._upstream, wire.EngineAnswer(state=state, **counts))
