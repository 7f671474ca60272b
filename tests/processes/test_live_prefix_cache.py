"""Admission with what an engine's prefix cache holds, by real processes."""

from functools import partial
from typing import Any

import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL
from patience import until

TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "2s", "tpot": "1s"}},
    {"name": "batch", "bestEffort": True},
]
ENGINE: dict[str, Any] = {
    "timeModel": "llama-3-70b-4xa100",
    "maxModelLen": 20000,
    "kvCacheTokens": 40000,
    "prefixCaching": True,
}
ROUTERS = ("main", "other")
LONG = "a word  " * 8000
"""16,000 tokens, of which this engine computes 5,000 a second: a second too late for a chat, and a turn whose
prompt is cached is nearly two early, whatever else the machine does."""


@pytest.fixture(scope="module")
def caching(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(tiers=TIERS, engine=ENGINE, routing={"order": "prefix"})


def ask(pool: LivePool, tier: str, *contents: str) -> tuple[str, Any]:
    """The verdict of a chat, and its usage."""
    messages: list[Any] = [{"role": "user", "content": content} for content in contents]
    with pool.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=2, extra_headers={"x-penstock-tier": tier}
        )
    return raw.headers["x-penstock-verdict"], raw.parse().usage


SESSIONS, TURNS = 4, 4


def knows(pool: LivePool, router: str, beginnings: float) -> bool:
    return pool.router_value("penstock_router_cached_prefixes", router) >= beginnings


def is_known(pool: LivePool, prompt: str) -> bool:
    """Return whether the router knows the prefix after a new request, because reports may be lost."""
    ask(pool, "batch", prompt)
    return knows(pool, "main", 1)


def test_turns_find_their_prefix_among_three_replicas_by_two_routers(
    open_module_pool: OpenPool,
) -> None:
    engine = {"timeModel": "llama-3-8b-a100", "maxModelLen": 20000, "prefixCaching": True}
    pool = open_module_pool(3, engine=engine, routing={"order": "prefix", "maxHops": 3})
    pool.start_router("other")
    clients = [pool.client(), pool.client("other")]
    served: dict[int, set[str]] = {session: set() for session in range(SESSIONS)}
    for number in range(1, TURNS + 1):
        known = [pool.router_value("penstock_router_cached_prefixes", name) for name in ROUTERS]
        for session in range(SESSIONS):
            messages: list[Any] = [
                {"role": "user", "content": f"turn {turn} of session {session} " * 20}
                for turn in range(number)
            ]
            raw = clients[(number + session) % 2].chat.completions.with_raw_response.create(
                model=MODEL,
                messages=messages,
                max_tokens=2,
                # Its hash spreads the first turns over replicas. Later turns are found by their prefix.
                extra_headers={"x-session-id": f"session-{session}"} if number == 1 else None,
            )
            served[session].add(raw.headers["x-penstock-replica"])
            usage: Any = raw.parse().usage
            cached = usage.prompt_tokens_details.cached_tokens if number > 1 else 0
            assert cached >= usage.prompt_tokens * (number - 1) / number - 32
        for name, before in zip(ROUTERS, known, strict=True):
            until(partial(knows, pool, name, before + SESSIONS), f"{name} knows of this turn")
    for client in clients:
        client.close()
    assert all(len(replicas) == 1 for replicas in served.values())
    assert len(set.union(*served.values())) > 1, "sessions are spread over replicas"


def test_a_turn_is_admitted_because_its_prefix_is_cached(caching: LivePool) -> None:
    assert ask(caching, "batch", LONG)[0] == "best-effort"
    until(partial(is_known, caching, LONG), "the sidecar has passed on that the prompt is cached")
    verdict, usage = ask(caching, "chat", LONG, "and now?")
    assert (verdict, usage.prompt_tokens_details.cached_tokens) == ("admitted", 16000)
    assert ask(caching, "chat", "another " + LONG)[0] == "best-effort"
