"""Carrying one accepted request to the engine and its answer back."""

from collections.abc import Callable
from typing import NamedTuple

import structlog
from penstock_core.domain.request import Job
from penstock_core.domain.request_lifecycle import State

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import Answer, AnswerTooLong, EngineClient, EngineGone
from penstock_sidecar.engine.sse import DONE, TokenCount, Usage, usage_of_body
from penstock_sidecar.engine.usage_strip import UsageStrip
from penstock_sidecar.requests.carried import Carried

log = structlog.get_logger()

Now = Callable[[], float]

FULL = frozenset({429, 503})
"""Statuses by which an engine says that it has no room: the next replica may have."""

NOT_UNDERSTOOD = frozenset({400, 422})
"""Statuses by which an engine says that it cannot read a body."""


class CutShort(Exception):
    """The engine closed an answer that was not whole."""


class Sending(NamedTuple):
    """What the engine is sent.

    plain: the client's own body, where `body` asks for usage that the client does not: what that adds to the
        answer is not passed on.
    """

    body: bytes
    plain: bytes | None = None


class Way(NamedTuple):
    """To the engine and back."""

    engine: EngineClient
    now_s: Now
    bounds: Bounds


async def carry(carried: Carried, job: Job, sending: Sending, way: Way) -> None:
    """Send it, pass the answer on, and end the request. Raises EngineGone where the engine is."""
    try:
        await _ask(carried, job, sending, way)
        if sending.plain is not None and not carried.ended:
            await _ask(carried, job, Sending(sending.plain), way)
            way.engine.takes_stream_options = carried.state is not State.FINISHED
    except EngineGone:
        carried.engine_lost()
        raise
    except CutShort:
        log.warning("answer cut short", request=carried.request_id)
        carried.engine_lost()
    except AnswerTooLong as error:
        log.error("answer too long", request=carried.request_id, error=str(error))
        carried.broke()


async def _ask(carried: Carried, job: Job, sending: Sending, way: Way) -> None:
    """Once. The request has ended on return, unless its plain body may be understood and this one was not."""
    async with way.engine.answer(carried.endpoint, sending.body, carried.request_id) as answer:
        if answer.status in FULL:
            carried.engine_full()
            return
        if answer.status != 200:
            if sending.plain is None or answer.status not in NOT_UNDERSTOOD:
                carried.engine_refused(answer.status, await answer.whole(way.bounds.answer_bytes))
            return
        if answer.streamed:
            strip = None if sending.plain is None else UsageStrip()
            usage = await _streamed(carried, answer, way.now_s, strip)
        else:
            usage = await _whole(carried, answer, way)
    carried.finished(usage or Usage(job.request.prompt_tokens, carried.tokens))


async def _streamed(carried: Carried, answer: Answer, now_s: Now, strip: UsageStrip | None) -> Usage | None:
    count, thinks = TokenCount(), True
    async for data in answer.body:
        tokens = count.feed(data)
        passed = data if strip is None else strip.feed(data)
        if passed or tokens:
            carried.output(passed, tokens, now_s())
        if thinks and count.thinking_tokens:
            thinks = False
            carried.thinking_over(count.thinking_tokens)
    if strip is not None and (rest := strip.end()):
        carried.output(rest, 0, now_s())
    if not count.done:
        if not count.finished:
            raise CutShort
        carried.output(DONE + b"\n\n", 0, now_s())  # clients wait for it
    return count.usage


async def _whole(carried: Carried, answer: Answer, way: Way) -> Usage | None:
    body = await answer.whole(way.bounds.answer_bytes)
    if not body:
        raise CutShort
    usage = usage_of_body(body)
    carried.output(body, usage.completion_tokens if usage else 0, way.now_s())
    return usage
