"""Reads an engine's answer and counts its tokens: for sidecars that pass answers on, and for routers.

Output of a stream is passed on in the turn of the event loop that reads it; the task of the request sleeps.
"""

import re
from collections.abc import Callable

from penstock_proto.sse import DONE, EngineUsage, TokenCount, usage_of_body

from penstock_runtime.engine.http_client import EngineResponse
from penstock_runtime.engine.whole_events import EventFilter, WholeEvents
from penstock_runtime.openai_errors import ApiError

_ERROR = re.compile(rb'\{\s*"error"\s*:\s*\{')
"""Begin of an error in OpenAI's format."""

LONGEST_ANSWER_BYTES = 32 << 20
"""Largest answer that is not streamed: it is buffered completely."""

ENGINE_LOST = ApiError(
    502, "the engine was lost while it served this request", "server_error", code="engine_lost"
)
"""The error of a request that was lost with its engine."""

OTHER_KIND_STATUS = 502
"""Status of an answer that is not of the kind that the client has requested. Its body may have the reason."""

PassOn = Callable[[bytes, int], None]
"""Receives whole events, and the number of new tokens. Either can be empty."""


class CutShort(Exception):
    """The engine has closed an incomplete answer."""

    def __init__(self) -> None:
        super().__init__("the engine closed its answer before the end")


class OtherKind(Exception):
    """The engine's answer is not of the kind that the client has requested, such as a page of a proxy.

    body: what the engine has sent instead; empty if it is a stream.
    """

    def __init__(self, body: bytes = b"") -> None:
        super().__init__("the engine's answer is not of the kind that was requested")
        self.body = body


async def check_kind(answer: EngineResponse, stream: bool, most_bytes: int) -> None:
    """Raise OtherKind for a stream that was not requested (`stream`), or for anything else instead of one.

    Raises EngineGone and AnswerTooLong, and CutShort if nothing has come instead.
    """
    if answer.streamed == stream:
        return
    if answer.streamed:
        raise OtherKind
    body = await answer.body(most_bytes)
    raise OtherKind(body) if body else CutShort


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
    """Return an answer that is not streamed, and its usage.

    Raises EngineGone, CutShort and AnswerTooLong; OtherKind if it is not an object, or is an error.
    """
    body = await answer.body(most_bytes)
    if not body:
        raise CutShort
    text = body.strip()
    if not (text.startswith(b"{") and text.endswith(b"}")) or _ERROR.match(text):
        raise OtherKind(body)
    return body, usage_of_body(body)
