"""An engine or a sidecar is killed during streams: each answer equals the answer without the failure.

The reference is the same answer without streaming: text, finish reason and usage must be equal. The process
is killed at the first event of a stream there, so that at least one stream moves on any machine. Requests
without tokens are sent again and ended streams do not move, so the number of moves is the router's counter.
"""

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from statistics import median
from time import monotonic
from typing import Any, NamedTuple

import openai
from pool_on_cluster.waiting import until

from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import by_label
from pool_on_vllm.processes import MODEL, START_S

STREAMS = 8
TOKENS = 160
QUESTIONS = ("How does a penstock work?", "Straße, 東京, 🚰", "once upon a time ", "x = [1, 2, 3]")
MOVES = "penstock_router_moves_total"


class Answer(NamedTuple):
    """An answer, as the client receives it. heads: number of different ids and times in its events."""

    text: str
    usage: tuple[int, int]
    reason: str | None
    heads: int


class ReceivedStream(NamedTuple):
    """A received stream. silence_s: the longest time between two of its events."""

    replica: str
    answer: Answer
    silence_s: float


def engine_killed(context: VllmContext) -> str:
    """An engine is killed during streams: the answers are complete and equal, token for token"""
    return _check_moves(context, context.pool.engine(context.replicas[0]), "engine_lost")


def sidecar_killed(context: VllmContext) -> str:
    """A sidecar is killed during streams: the answers are complete and equal, token for token"""
    return _check_moves(context, context.pool.sidecar(context.replicas[0]), "replica_lost")


def _check_moves(context: VllmContext, process: int, cause: str) -> str:
    victim = context.replicas[0].name
    admin = context.pool.router.admin_url
    before = by_label(admin, MOVES, "outcome")
    references, received = asyncio.run(_streams(context, victim, process))
    outcomes = by_label(admin, MOVES, "outcome") - before
    differ = [
        f"{number}: {one.answer} is not {reference}"
        for number, (reference, one) in enumerate(zip(references, received, strict=True))
        if one.answer != reference
    ]
    assert not differ, "\n".join(differ)
    silences_s = sorted(one.silence_s for one in received if one.replica == victim)
    assert set(outcomes) == {"moved"}, f"{outcomes} of {len(silences_s)} streams of {victim}"
    assert outcomes["moved"] <= len(silences_s), f"{outcomes} of {len(silences_s)} streams of {victim}"
    moved_s = silences_s[-outcomes["moved"] :]
    until(lambda: victim in context.pool.serving(), f"{victim} is ready again", START_S)
    return (
        f"{len(moved_s)} of {len(received)} streams moved ({cause}), "
        f"{sum(one.answer.usage[1] for one in received)} tokens, all equal; median "
        f"silence {median(moved_s):.2f} s, longest {max(moved_s):.2f} s"
    )


async def _streams(
    context: VllmContext, victim: str, process: int
) -> tuple[list[Answer], list[ReceivedStream]]:
    """Return the unstreamed answers, and the streams during which the process is killed."""
    requests = _requests(context)
    url = f"{context.pool.router.url}/v1"
    killed = False

    def on_first_event(replica: str) -> None:
        nonlocal killed
        if replica == victim and not killed:
            killed = True
            os.kill(process, signal.SIGKILL)

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        references = [await _unstreamed(client, request) for request in requests]
        received = await asyncio.gather(*(_received(client, request, on_first_event) for request in requests))
    return references, received


def _requests(context: VllmContext) -> Sequence[dict[str, Any]]:
    """Return the requests: chats and completions alternately."""
    chats = [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS]
    texts = [{"prompt": reference.prompt} for reference in context.references]
    return [one for pair in zip(chats, texts, strict=False) for one in pair][:STREAMS]


def _options() -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}


def _endpoint(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Any:
    return client.completions if "prompt" in request else client.chat.completions


async def _unstreamed(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Answer:
    answer = await _endpoint(client, request).create(**request, **_options())
    (choice,) = answer.choices
    text = choice.text if "prompt" in request else choice.message.content
    return Answer(text, (answer.usage.prompt_tokens, answer.usage.completion_tokens), choice.finish_reason, 1)


async def _received(
    client: openai.AsyncOpenAI, request: dict[str, Any], on_first_event: Callable[[str], None]
) -> ReceivedStream:
    """Receive a stream. on_first_event: called with the replica that serves it."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await _endpoint(client, request).create(**request, **_options(), **options)
    replica = stream.response.headers["x-penstock-replica"]
    on_first_event(replica)
    text, usage, reason, heads = "", (0, 0), None, set()
    last_s, silence_s = monotonic(), 0.0
    async for chunk in stream:
        now_s = monotonic()
        last_s, silence_s = now_s, max(silence_s, now_s - last_s)
        heads.add((chunk.id, chunk.created))
        for choice in chunk.choices:
            text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            reason = choice.finish_reason or reason
        if chunk.usage:
            usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
    return ReceivedStream(replica, Answer(text, usage, reason, len(heads)), silence_s)
