"""One completion over HTTP: from a body to an answer, streamed or whole.

A stream is woken once an iteration and writes once. A second task waits for the client to go away, which
ends the request in the engine and frees its memory at the next moment.
"""

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from penstock_core.domain.engine_fields import from_fields
from penstock_core.domain.request import Job
from penstock_runtime.asgi import EVENT_STREAM, ClientGone, Receive, Send, answer, read_body

from penstock_simulator.answer import Aborted, Answer
from penstock_simulator.engine_state import NeverFits
from penstock_simulator.json_fields import bad_field
from penstock_simulator.rendering import EventStream, Named, usage_of, whole_answer
from penstock_simulator.request_body import Asked, Endpoint, read_asked
from penstock_simulator.step_loop import StepLoop

ANSWER_MEDIAN_LOG = 5.3
"""Answers of unknown length are log-normal: median of 200 tokens, a tenth above 560."""
ANSWER_SIGMA = 0.8

_PREFIX = {Endpoint.CHAT: "chatcmpl-", Endpoint.COMPLETION: "cmpl-"}


@dataclass(frozen=True, slots=True)
class Completions:
    """The two completion endpoints of one engine.

    lengths: draws the true length of answers whose request does not say it.
    """

    loop: StepLoop
    model: str
    max_model_len: int
    max_body_bytes: int
    lengths: random.Random

    async def serve(self, endpoint: Endpoint, request_id: str | None, receive: Receive, send: Send) -> None:
        """One request, to its end. Raises ApiError where it is wrong, ClientGone where nobody is left."""
        asked = read_asked(
            await read_body(receive, self.max_body_bytes), endpoint, self.model, self.max_model_len
        )
        named = self._named(endpoint, request_id or uuid.uuid4().hex)
        reply = self._submit(asked, named.id)
        try:
            async with _given_up_with_its_client(self.loop, reply, receive):
                if asked.stream:
                    await _stream(asked, named, reply, send)
                else:
                    await _whole(asked, named, reply, send)
        except Aborted:
            raise ClientGone from None

    def _named(self, endpoint: Endpoint, request_id: str) -> Named:
        voice = self.lengths.getrandbits(16)
        return Named(endpoint, _PREFIX[endpoint] + request_id, self.model, int(time.time()), voice)

    def _submit(self, asked: Asked, engine_id: str) -> Answer:
        try:
            return self.loop.submit(
                self._job(asked, engine_id), self._answer_tokens(asked), asked.thinking_tokens
            )
        except NeverFits:
            raise bad_field(
                "max_tokens", "prompt and answer need more KV cache than the engine has"
            ) from None
        except ValueError:
            raise bad_field("vllm_xargs.penstock_id", "a request of this id is under way") from None

    def _job(self, asked: Asked, engine_id: str) -> Job:
        try:
            return from_fields(
                asked.xargs,
                engine_id=engine_id,
                prompt_tokens=asked.prompt_tokens,
                max_output_tokens=asked.max_tokens,
                now_s=self.loop.now_s(),
            )
        except ValueError as error:
            raise bad_field("vllm_xargs.penstock_judge", str(error)) from None

    def _answer_tokens(self, asked: Asked) -> int:
        if asked.answer_tokens is not None:
            return asked.answer_tokens
        drawn = round(self.lengths.lognormvariate(ANSWER_MEDIAN_LOG, ANSWER_SIGMA))
        return min(max(drawn, asked.min_tokens, 1), asked.max_tokens)


async def _stream(asked: Asked, named: Named, reply: Answer, send: Send) -> None:
    events = EventStream(named, asked.thinking_tokens)
    places = await reply.take()  # the head waits for the first token, so that failing before it has a status
    await send(
        {
            "type": "http.response.start",
            "status": 200,
            "headers": [(b"content-type", EVENT_STREAM), (b"cache-control", b"no-cache")],
        }
    )
    while reply.finish is None:
        await send({"type": "http.response.body", "body": events.tokens(places), "more_body": True})
        places = await reply.take()
    usage = usage_of(asked.prompt_tokens, reply.tokens) if asked.include_usage else None
    await send({"type": "http.response.body", "body": events.end(places, reply.finish, usage)})


async def _whole(asked: Asked, named: Named, reply: Answer, send: Send) -> None:
    while reply.finish is None:
        await reply.take()
    usage = usage_of(asked.prompt_tokens, reply.tokens)
    await answer(send, whole_answer(named, reply.tokens, asked.thinking_tokens, reply.finish, usage))


@contextlib.asynccontextmanager
async def _given_up_with_its_client(loop: StepLoop, reply: Answer, receive: Receive) -> AsyncIterator[None]:
    watcher = asyncio.create_task(_abort_when_gone(loop, reply, receive))
    try:
        yield
    finally:
        watcher.cancel()
        loop.abort(reply)  # nothing to do, unless the request was cut off


async def _abort_when_gone(loop: StepLoop, reply: Answer, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    loop.abort(reply)
