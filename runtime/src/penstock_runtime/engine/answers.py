"""Reads an engine's answer and counts its tokens: for sidecars that pass answers on, and for routers.

Output of a stream is passed on in the turn of the event loop that reads it; the task of the request sleeps.
"""

from collections.abc import Callable

from penstock_proto.sse import DONE, EngineUsage, TokenCount, usage_of_body

from penstock_runtime.engine.http_client import EngineResponse
from penstock_runtime.engine.whole_events import EventFilter, WholeEvents
from penstock_runtime.openai_errors import ApiError

LONGEST_ANSWER_BYTES = 32 << 20
"""Largest answer that is not streamed: it is buffered completely."""

ENGINE_LOST = ApiError(
    502, "the engine was lost while it served this request", "server_error", code="engine_lost"
)
"""The error of a request that was lost with its engine."""

PassOn = Callable[[bytes, int], None]
"""Receives whole events, and the number of new tokens. Either can be empty."""


class CutShort(Exception):
    """The engine has closed an incomplete answer."""

    def __init__(self) -> None:
        super().__init__("the engine closed its answer before the end")


async def read_stream(
    answer: EngineResponse,
    pass_on: PassOn,
    thinking_ended: Callable[[int], None],
    events: EventFilter | None = None,
) -> TokenCount:
    """Pass on a streamed answer, and return its count.

    thinking_ended: called once, with the tokens before the answer proper, when that has begun.
    events: selects what is passed on; by default every complete event.
    Raises EngineGone and CutShort, and what `pass_on` raises.
    """
    count, events, thinks = TokenCount(), events or WholeEvents(), True

    def receive(data: bytes) -> None:
        nonlocal thinks
        tokens = count.feed(data)
        passed = events.feed(data)
        if passed or tokens:
            pass_on(passed, tokens)
        if thinks and count.thinking_tokens:
            thinks = False
            thinking_ended(count.thinking_tokens)

    await answer.receive_body(receive)
    if not count.done:
        if not count.finished:
            raise CutShort
        pass_on(DONE + b"\n\n", 0)  # the engine omitted it, and clients wait for it
    return count


async def read_whole(answer: EngineResponse, most_bytes: int) -> tuple[bytes, EngineUsage | None]:
    """Return an answer that is not streamed, and its usage. Raises EngineGone, CutShort and AnswerTooLong."""
    body = await answer.body(most_bytes)
    if not body:
        raise CutShort
    return body, usage_of_body(body)
