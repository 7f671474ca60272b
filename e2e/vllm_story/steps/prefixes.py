"""Chats of several turns on engines with prefix caches: hits are counted at the client and at the sidecars.

A turn sends all messages before it, answers included, and one more. No session is named, so its turns find
their replica by what that one reports as cached.
"""

import asyncio
from typing import NamedTuple

import openai
from story.waiting import until

from vllm_story import pools
from vllm_story.figures import total
from vllm_story.servers import MODEL, START_S, LocalPool
from vllm_story.steps.beginning import start
from vllm_story.world import World

SESSIONS, TURNS = 6, 4
ANSWER_TOKENS = 16
THINK_S = 1.0
"""Between an answer and the next turn: longer than a report of what is cached takes to the router."""
COUNTS = ("planned", "found", "missing")
"""Of `penstock_replica_cached_tokens_…_total`."""


class Turn(NamedTuple):
    """What a client sees of a turn."""

    replica: str
    prompt_tokens: int
    cached_tokens: int


def pool_is_up(world: World) -> str:
    """Two replicas with prefix caches"""
    return start(world, LocalPool(pools.caching(world), world.model, 2, world.file("up-caching.log")))


def turns(world: World) -> str:
    """Turns of a chat find their prefix: clients and sidecars count the same cached tokens"""
    sessions = asyncio.run(_sessions(f"{world.up.router.url}/v1"))
    later = [turn for session in sessions for turn in session[1:]]
    cached = sum(turn.cached_tokens for session in sessions for turn in session)
    until(lambda: _counted(world)["found"] == cached, f"sidecars have found {cached} cached tokens")
    counted = _counted(world)
    moved = sum(turn.replica != session[0].replica for session in sessions for turn in session[1:])
    output = (
        f"{SESSIONS} sessions of {TURNS} turns, {cached} of {sum(turn.prompt_tokens for turn in later)} "
        f"tokens of later turns cached; {counted['planned']:.0f} planned, {counted['missing']:.0f} of them "
        f"missing; {moved} turns left their session's replica"
    )
    assert all(turn.cached_tokens for turn in later), output
    assert not moved, output
    assert not counted["missing"], output
    assert counted["planned"], output
    return output


def _counted(world: World) -> dict[str, float]:
    """The tokens that both sidecars have counted, by kind."""
    return {
        kind: sum(
            total(replica.metrics, f"penstock_replica_cached_tokens_{kind}_total")
            for replica in world.replicas
        )
        for kind in COUNTS
    }


async def _sessions(url: str) -> list[list[Turn]]:
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        return await asyncio.gather(*(_session(client, number) for number in range(SESSIONS)))


async def _session(client: openai.AsyncOpenAI, number: int) -> list[Turn]:
    """One chat, turn after turn."""
    messages: list[dict[str, str]] = []
    seen: list[Turn] = []
    for turn in range(TURNS):
        text = f"session {number}, turn {turn}: " + f"{number} times {turn} " * 30
        messages.append({"role": "user", "content": text})
        raw = await client.chat.completions.with_raw_response.create(
            model=MODEL,
            messages=messages,  # type: ignore[arg-type]
            max_tokens=ANSWER_TOKENS,
            temperature=0,
        )
        answer = raw.parse()
        assert answer.usage is not None
        details = answer.usage.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens or 0
        seen.append(Turn(raw.headers["x-penstock-replica"], answer.usage.prompt_tokens, cached))
        messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
        await asyncio.sleep(THINK_S)
    return seen
