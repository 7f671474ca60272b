"""Chats of several turns on engines with prefix caches: hits are counted at the client and at the sidecars.

A turn sends all messages before it, answers included, and one more. No session is named, so its turns find
their replica by what that one reports as cached.
"""

import asyncio
from functools import partial
from typing import Any, NamedTuple

import openai
from pool_on_cluster.waiting import until

from pool_on_vllm import pools
from pool_on_vllm.figures import total
from pool_on_vllm.servers import MODEL, START_S, LocalPool, Router
from pool_on_vllm.steps.beginning import start
from pool_on_vllm.world import World

SESSIONS, TURNS = 6, 4
ANSWER_TOKENS = 16
COUNTS = ("planned", "found", "missing")
"""Of `penstock_replica_cached_tokens_…_total`."""
PREFIXES = "penstock_router_cached_prefixes"


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
    sessions = asyncio.run(_sessions(world.up.router))
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
    """The tokens that all sidecars have counted, by kind."""
    return {
        kind: sum(
            total(replica.metrics, f"penstock_replica_cached_tokens_{kind}_total")
            for replica in world.replicas
        )
        for kind in COUNTS
    }


async def _sessions(router: Router) -> list[list[Turn]]:
    """The turns of each session; the next ones begin once the router knows what is cached of the last."""
    chats: list[list[Any]] = [[] for _ in range(SESSIONS)]
    seen: list[list[Turn]] = [[] for _ in range(SESSIONS)]
    url = f"{router.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        for turn in range(TURNS):
            known = total(router.admin_url, PREFIXES)
            found = await asyncio.gather(*(_turn(client, n, turn, chat) for n, chat in enumerate(chats)))
            for session, one in zip(seen, found, strict=True):
                session.append(one)
            knows = partial(_knows, router, known + SESSIONS)
            await asyncio.to_thread(until, knows, f"the router knows the prompts of turn {turn}")
    return seen


def _knows(router: Router, prefixes: float) -> bool:
    return total(router.admin_url, PREFIXES) >= prefixes


async def _turn(client: openai.AsyncOpenAI, session: int, turn: int, messages: list[Any]) -> Turn:
    """One turn of a chat, whose messages grow by it."""
    text = f"session {session}, turn {turn}: " + f"{session} times {turn} " * 30
    messages.append({"role": "user", "content": text})
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=messages, max_tokens=ANSWER_TOKENS, temperature=0
    )
    answer = raw.parse()
    assert answer.usage is not None
    details = answer.usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    messages.append({"role": "assistant", "content": answer.choices[0].message.content or ""})
    return Turn(raw.headers["x-penstock-replica"], answer.usage.prompt_tokens, cached)
