"""Chats of several turns on engines with prefix caches: clients and sidecars count the same cache hits.

A turn sends all earlier messages, with the answers, and one more. Requests have no session header, so a turn
is routed by the prefixes that replicas report as cached.
"""

import asyncio
from functools import partial
from typing import Any, NamedTuple

import openai
from pool_on_cluster.waiting import until

from pool_on_vllm import pools
from pool_on_vllm.context import VllmContext
from pool_on_vllm.metrics_page import total
from pool_on_vllm.processes import MODEL, START_S, LocalPool, Router
from pool_on_vllm.steps.startup import start

SESSIONS, TURNS = 6, 4
ANSWER_TOKENS = 16
COUNTS = ("planned", "found", "missing")
"""Parts of the metrics' names `penstock_replica_cached_tokens_…_total`."""
PREFIXES = "penstock_router_cached_prefixes"


class Turn(NamedTuple):
    """One turn, as the client sees it."""

    replica: str
    prompt_tokens: int
    cached_tokens: int


def start_pool(context: VllmContext) -> str:
    """Two replicas with prefix caches start"""
    return start(
        context,
        LocalPool(pools.prefix_caching(context), context.model, 2, context.file("up-prefix-caching.log")),
    )


def turns(context: VllmContext) -> str:
    """Turns of a chat hit the prefix cache: clients and sidecars count the same cached tokens"""
    sessions = asyncio.run(_sessions(context.pool.router))
    later = [turn for session in sessions for turn in session[1:]]
    cached = sum(turn.cached_tokens for session in sessions for turn in session)
    until(lambda: _counted(context)["found"] == cached, f"sidecars count {cached} cached tokens")
    counted = _counted(context)
    moved = sum(turn.replica != session[0].replica for session in sessions for turn in session[1:])
    output = (
        f"{SESSIONS} sessions of {TURNS} turns, {cached} of {sum(turn.prompt_tokens for turn in later)} "
        f"tokens of later turns cached; {counted['planned']:.0f} planned, {counted['missing']:.0f} of them "
        f"missing; {moved} turns went to another replica than their session's first turn"
    )
    assert all(turn.cached_tokens for turn in later), output
    assert not moved, output
    assert not counted["missing"], output
    assert counted["planned"], output
    return output


def _counted(context: VllmContext) -> dict[str, float]:
    """Return the tokens that all sidecars have counted, by kind."""
    return {
        kind: sum(
            total(replica.metrics, f"penstock_replica_cached_tokens_{kind}_total")
            for replica in context.replicas
        )
        for kind in COUNTS
    }


async def _sessions(router: Router) -> list[list[Turn]]:
    """Return the turns of each session. The next turns start when the router has the last ones' prefixes."""
    chats: list[list[Any]] = [[] for _ in range(SESSIONS)]
    turns: list[list[Turn]] = [[] for _ in range(SESSIONS)]
    url = f"{router.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=START_S) as client:
        for turn in range(TURNS):
            before = total(router.admin_url, PREFIXES)
            results = await asyncio.gather(*(_turn(client, n, turn, chat) for n, chat in enumerate(chats)))
            for session, result in zip(turns, results, strict=True):
                session.append(result)
            has_prefixes = partial(_has_prefixes, router, before + SESSIONS)
            await asyncio.to_thread(until, has_prefixes, f"the router has the prefixes of turn {turn}")
    return turns


def _has_prefixes(router: Router, prefixes: float) -> bool:
    return total(router.admin_url, PREFIXES) >= prefixes


async def _turn(client: openai.AsyncOpenAI, session: int, turn: int, messages: list[Any]) -> Turn:
    """Send one turn of a chat, and append its messages."""
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
