"""kill -9 of an engine and of a sidecar in mid-stream: each answer is the one that would have come.

It is compared with the same answer in one piece, by its text, its reason to end and its usage.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from typing import Any, NamedTuple

import openai
from story.waiting import until

from vllm_story.figures import by_label, total
from vllm_story.servers import MODEL, START_S
from vllm_story.world import World

STREAMS = 8
TOKENS = 160
QUESTIONS = ("How does a penstock work?", "Straße, 東京, 🚰", "once upon a time ", "x = [1, 2, 3]")
MOVES = "penstock_router_moves_total"
SILENCE = "penstock_router_move_silence_seconds"


class Answer(NamedTuple):
    """What a client gets. heads: the id and the time in each of its events."""

    text: str
    usage: tuple[int, int]
    reason: str | None
    heads: int


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
    silent_s, silences = total(admin, f"{SILENCE}_sum"), total(admin, f"{SILENCE}_count")
    wholes, answers, moved = asyncio.run(_streams(world, process, victim))
    outcomes = by_label(admin, MOVES, "outcome") - before
    differ = [
        f"{number}: {one} is not {whole}"
        for number, (whole, one) in enumerate(zip(wholes, answers, strict=True))
        if one != whole
    ]
    assert not differ, "\n".join(differ)
    assert moved > 0, "no stream was at the replica that was lost"
    assert set(outcomes) == {"moved"}, outcomes
    assert outcomes["moved"] == moved, (outcomes, moved)
    until(lambda: victim in world.up.serving(), f"{victim} is in service again", START_S)
    silence_s = (total(admin, f"{SILENCE}_sum") - silent_s) / (total(admin, f"{SILENCE}_count") - silences)
    return (
        f"{moved} of {len(answers)} streams moved ({cause}), {sum(one.usage[1] for one in answers)} tokens, "
        f"the same; {silence_s:.2f} s of silence in the mean"
    )


async def _streams(world: World, process: int, victim: str) -> tuple[list[Answer], list[Answer], int]:
    """The answers in one piece, those of streams that are cut, and how many of these were at the victim."""
    asks = _asks(world)
    url = f"{world.up.router.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        wholes = [await _whole(client, ask) for ask in asks]
        streams = [await _begun(client, ask) for ask in asks]
        os.kill(process, signal.SIGKILL)
        answers = await asyncio.gather(*(_rest(stream) for stream in streams))
    moved = [stream.response.headers["x-penstock-replica"] for stream in streams].count(victim)
    return wholes, list(answers), moved


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


async def _begun(client: openai.AsyncOpenAI, ask: dict[str, Any]) -> Any:
    """A stream, which may have brought anything."""
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    return await _endpoint(client, ask).create(**ask, **_options(), **usage)


async def _rest(stream: Any) -> Answer:
    text, usage, reason, heads = "", (0, 0), None, set()
    async for chunk in stream:
        heads.add((chunk.id, chunk.created))
        for choice in chunk.choices:
            text += (choice.delta.content if hasattr(choice, "delta") else choice.text) or ""
            reason = choice.finish_reason or reason
        if chunk.usage:
            usage = (chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
    return Answer(text, usage, reason, len(heads))
