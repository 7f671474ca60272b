"""The completion endpoints: from a request body to a streamed or complete response.

A streamed response wakes and writes once an iteration. When the client disconnects, the request is aborted in
the engine, which frees its KV blocks.
"""

import contextlib
import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from penstock_core.domain.engine_fields import Scalar, counts_on_cache, from_fields
from penstock_core.domain.request import Job
from penstock_core.domain.ticket import TicketCheck
from penstock_runtime.http_request import EVENT_STREAM, ClientGone, HttpRequest

from penstock_simulator.engine.engine_state import NeverFits
from penstock_simulator.http.answer_watch import UNWATCHED, AnswerWatch
from penstock_simulator.http.json_fields import bad_field
from penstock_simulator.http.request_body import ApiEndpoint, CompletionRequest, read_request
from penstock_simulator.http.responses import EventWriter, ResponseHead, Usage, json_response, usage_of
from penstock_simulator.serving.step_loop import StepLoop
from penstock_simulator.serving.token_stream import Aborted, TokenStream

ANSWER_MEDIAN_LOG = 5.3
"""Answers of unstated length are log-normal: median of 200 stream, 90th percentile of 560."""
ANSWER_SIGMA = 0.8
"""Standard deviation of the logarithm of such a length."""

_PREFIX = {ApiEndpoint.CHAT: "chatcmpl-", ApiEndpoint.COMPLETION: "cmpl-"}


@dataclass(frozen=True, slots=True)
class Completions:
    """The two completion endpoints of one engine.

    seed: seed of answer lengths that requests do not state. An answer's length and words depend only on the
        prompt and the seed, so engines with equal seeds give the same answer.
    tickets: check of tickets, if SLO fields are read from tickets only; None if only the sidecar sends
        requests.
    ticket_key: returns the key of tickets; b"" if there is none.
    """

    loop: StepLoop
    model: str
    max_model_len: int
    max_body_bytes: int
    seed: int = 0
    tickets: TicketCheck | None = None
    ticket_key: Callable[[], bytes] = bytes

    async def serve(self, endpoint: ApiEndpoint, http: HttpRequest, watch: AnswerWatch = UNWATCHED) -> None:
        """Serve one request. Raises ApiError if it is invalid, ClientGone if its client has disconnected."""
        request = read_request(
            await http.body(self.max_body_bytes),
            endpoint,
            self.model,
            self.max_model_len,
            self.loop.state.block_tokens if self.loop.state.cached is not None else 0,
        )
        id = _PREFIX[endpoint] + (_request_id(http) or uuid.uuid4().hex)
        head = ResponseHead(endpoint, id, self.model, int(time.time()), request.answer, request.prompt_ids)
        stream = self._submit(request, head.id)
        try:
            with _aborted_with_client(self.loop, stream, http):
                if request.stream:
                    await _stream(request, head, stream, http, watch)
                else:
                    await _whole(request, head, stream, http, watch)
        except Aborted:
            raise ClientGone from None

    def _submit(self, request: CompletionRequest, engine_id: str) -> TokenStream:
        fields, from_s = self._slo_fields(request)
        try:
            return self.loop.submit(
                self._job(request, engine_id, fields, from_s),
                self._answer_tokens(request),
                request.thinking_tokens,
                request.block_keys,
                pinned=counts_on_cache(fields),
            )
        except NeverFits:
            raise bad_field(
                "max_tokens", "prompt and answer need more KV blocks than the engine has"
            ) from None
        except ValueError:
            raise bad_field("vllm_xargs.penstock_id", "a request with this id is in progress") from None

    def _slo_fields(self, request: CompletionRequest) -> tuple[Mapping[str, Scalar], float]:
        """Return the request's SLO fields, and the time from which their durations count."""
        now_s = self.loop.now_s()
        if self.tickets is None:
            return request.xargs, now_s
        holder = uuid.uuid4().hex  # a client chooses the engine's id
        return self.tickets.fields(request.xargs, self.ticket_key(), holder, now_s, now_s)[:2]

    def _job(
        self, request: CompletionRequest, engine_id: str, fields: Mapping[str, Scalar], from_s: float
    ) -> Job:
        try:
            return from_fields(
                fields,
                engine_id=engine_id,
                prompt_tokens=request.prompt_tokens,
                max_output_tokens=request.max_tokens,
                now_s=from_s,
            )
        except ValueError as error:
            raise bad_field("vllm_xargs.penstock_judge", str(error)) from None

    def _answer_tokens(self, request: CompletionRequest) -> int:
        if request.answer_tokens is not None:
            return request.answer_tokens
        answer = request.answer
        draw = random.Random(answer.text_seed << 32 | self.seed & 0xFFFFFFFF)
        left = round(draw.lognormvariate(ANSWER_MEDIAN_LOG, ANSWER_SIGMA)) - answer.position
        return min(max(left, request.min_tokens, 1), request.max_tokens)


async def _stream(
    request: CompletionRequest, head: ResponseHead, stream: TokenStream, http: HttpRequest, watch: AnswerWatch
) -> None:
    events = EventWriter(head, request.thinking_tokens)
    positions = (
        await stream.take()
    )  # headers wait for the first token, so that an error before it has a status
    http.start(headers=[(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache"), *watch.headers])
    while stream.finish is None:
        data = events.tokens(positions)
        await http.send(data)
        watch.wrote(data)
        positions = await stream.take()
    usage = _usage(request, stream) if request.include_usage else None
    data = events.end(positions, stream.finish, usage)
    await http.end(data)
    watch.wrote(data)
    watch.stream_ended()


async def _whole(
    request: CompletionRequest, head: ResponseHead, stream: TokenStream, http: HttpRequest, watch: AnswerWatch
) -> None:
    while stream.finish is None:
        await stream.take()
    usage = _usage(request, stream)
    body = json_response(head, stream.tokens, request.thinking_tokens, stream.finish, usage)
    await http.answer(body, headers=watch.headers)
    watch.answered(body)


def _usage(request: CompletionRequest, stream: TokenStream) -> Usage:
    return usage_of(request.prompt_tokens, stream.tokens, stream.cached_tokens)


@contextlib.contextmanager
def _aborted_with_client(loop: StepLoop, stream: TokenStream, http: HttpRequest) -> Iterator[None]:
    def abort() -> None:
        loop.abort(stream)  # no effect if the answer is complete

    http.on_gone = abort
    try:
        yield
    finally:
        abort()


def _request_id(http: HttpRequest) -> str | None:
    for name, value in http.headers:
        if name == b"x-request-id":
            return value.decode("latin-1")[:128] or None
    return None
