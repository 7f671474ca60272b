"""Carrying one accepted request to the engine and its answer back."""

from collections.abc import Callable

import structlog
from penstock_core.request import Job

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.carried import Carried
from penstock_sidecar.engine_client import Answer, AnswerTooLong, EngineClient, EngineGone
from penstock_sidecar.sse import TokenCount, Usage, usage_of_body

log = structlog.get_logger()

Now = Callable[[], float]


class CutShort(Exception):
    """The engine closed an answer that was not whole."""


async def carry(
    carried: Carried, job: Job, body: bytes, engine: EngineClient, *, now_s: Now, bounds: Bounds
) -> None:
    """Send `body`, pass the answer on, and end the request. Raises EngineGone where the engine is."""
    try:
        async with engine.answer(carried.endpoint, body, carried.request_id) as answer:
            if answer.status != 200:
                carried.engine_refused(answer.status, await answer.whole(bounds.answer_bytes))
                return
            pass_on = _streamed if answer.streamed else _whole
            usage = await pass_on(carried, answer, now_s, bounds)
        carried.finished(usage or Usage(job.request.prompt_tokens, carried.tokens))
    except EngineGone:
        carried.engine_lost()
        raise
    except CutShort:
        log.warning("answer cut short", request=carried.request_id)
        carried.engine_lost()
    except AnswerTooLong as error:
        log.error("answer too long", request=carried.request_id, error=str(error))
        carried.broke()
    except Exception:
        log.exception("request broke", request=carried.request_id)
        carried.broke()


async def _streamed(carried: Carried, answer: Answer, now_s: Now, _: Bounds) -> Usage | None:
    count, thinks = TokenCount(), True
    async for data in answer.body:
        carried.output(data, count.feed(data), now_s())
        if thinks and count.thinking_tokens:
            thinks = False
            carried.thinking_over(count.thinking_tokens)
    if not count.done:
        raise CutShort
    return count.usage


async def _whole(carried: Carried, answer: Answer, now_s: Now, bounds: Bounds) -> Usage | None:
    body = await answer.whole(bounds.answer_bytes)
    if not body:
        raise CutShort
    usage = usage_of_body(body)
    carried.output(body, usage.completion_tokens if usage else 0, now_s())
    return usage
