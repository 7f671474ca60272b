"""kill -9 of an engine and of a sidecar in mid-stream: each answer is the one that would have come.

It is compared with the same answer in one piece, by its text, its reason to end and its usage. The process is
killed at the first event of a stream there, so that one at least moves, however fast the machine is. Requests
that have not begun are replayed and streams that have ended stay, so the router's count says how many moved.
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

from pool_on_vllm.figures import by_label
from pool_on_vllm.servers import MODEL, START_S
from pool_on_vllm.world import World

STREAMS = 8
TOKENS = 160
QUESTIONS = ("How does a penstock work?", "Straße, 東京, 🚰", "once upon a time ", "x = [1, 2, 3]")
MOVES = "penstock_router_moves_total"


class Answer(NamedTuple):
    """What a client gets. heads: the id and the time in each of its events."""

    text: str
    usage: tuple[int, int]
    reason: str | None
    heads: int


class Received(NamedTuple):
    """What came of a stream. silence_s: the longest time between two of its events."""

    replica: str
    answer: Answer
    silence_s: float


def engine_killed(world: World) -> str:
    """kill -9 of an engine in mid-stream: the answers are whole, and those of vLLM token for token"""
    return _killed(world, world.up.engine(world.replicas[0]), "engine_lost")


def sidecar_killed(world: World) -> str:
    """kill -9 of a sidecar in mid-stream: the answers are whole, and those of vLLM token for token"""
    return _killed(world, world.up.sidecar(world.replicas[0]), "replica_lost")


def _killed(world: World, process: int, cause: str) -> str:
    victim = world.replicas[0].name
    admin = world.up.router.admin_url
    before = by_label(admin, MOVES, "outcome")
    wholes, received = asyncio.run(_streams(world, victim, process))
    outcomes = by_label(admin, MOVES, "outcome") - before
    differ = [
        f"{number}: {one.answer} is not {whole}"
        for number, (whole, one) in enumerate(zip(wholes, received, strict=True))
        if one.answer != whole
    ]
    assert not differ, "\n".join(differ)
    there_s = sorted(one.silence_s for one in received if one.replica == victim)
    assert set(outcomes) == {"moved"}, f"{outcomes} of {len(there_s)} streams there"
    assert outcomes["moved"] <= len(there_s), f"{outcomes} of {len(there_s)} streams there"
    silences_s = there_s[-outcomes["moved"] :]
    until(lambda: victim in world.up.serving(), f"{victim} is in service again", START_S)
    return (
        f"{len(silences_s)} of {len(received)} streams moved ({cause}), "
        f"{sum(one.answer.usage[1] for one in received)} tokens, the same; clients saw "
        f"{median(silences_s):.2f} s of silence in the median, {max(silences_s):.2f} s at most"
    )


async def _streams(world: World, victim: str, process: int) -> tuple[list[Answer], list[Received]]:
    """The answers in one piece, and those of streams during which the process is killed."""
    asks = _asks(world)
    url = f"{world.up.router.url}/v1"
    killed = False

    def begun(replica: str) -> None:
        nonlocal killed
        if replica == victim and not killed:
            killed = True
            os.kill(process, signal.SIGKILL)

    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        wholes = [await _whole(client, ask) for ask in asks]
        received = await asyncio.gather(*(_received(client, ask, begun) for ask in asks))
    return wholes, received


def _asks(world: World) -> Sequence[dict[str, Any]]:
    """Chats and completions in turns."""
    chats = [{"messages": [{"role": "user", "content": text}]} for text in QUESTIONS]
    texts = [{"prompt": reference.prompt} for reference in world.references]
    return [one for pair in zip(chats, texts, strict=False) for one in pair][:STREAMS]


def _options() -> dict[str, Any]:
    return {"model": MODEL, "max_tokens": TOKENS, "temperature": 0, "extra_body": {"ignore_eos": True}}


def _endpoint(client: openai.AsyncOpenAI, ask: dict[str, Any]) -> Any:
    return client.completions if "prompt" in ask else client.chat.completions


async def _whole(client: openai.AsyncOpenAI, ask: dict[str, Any]) -> Answer:
    answer = await _endpoint(client, ask).create(**ask, **_options())
    (choice,) = answer.choices
    text = choice.text if "prompt" in ask else choice.message.content
    return Answer(text, (answer.usage.prompt_tokens, answer.usage.completion_tokens), choice.finish_reason, 1)


async def _received(
    client: openai.AsyncOpenAI, ask: dict[str, Any], begun: Callable[[str], None]
) -> Received:
    """A stream to its end. begun: called at its first event with the replica that sends it."""
    usage_too = {"stream": True, "stream_options": {"include_usage": True}}
    stream = await _endpoint(client, ask).create(**ask, **_options(), **usage_too)
    replica = stream.response.headers["x-penstock-replica"]
    begun(replica)
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
    return Received(replica, Answer(text, usage, reason, len(heads)), silence_s)
