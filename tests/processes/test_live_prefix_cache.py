"""Admission with what an engine's prefix cache holds, by real processes."""

from typing import Any

import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL

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
LONG = "a word  " * 8000
"""16,000 tokens, of which this engine computes 5,000 a second: a second too late for a chat, and a turn whose
prompt is cached is nearly two early, whatever else the machine does."""


@pytest.fixture(scope="module")
def caching(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(tiers=TIERS, engine=ENGINE)


def ask(pool: LivePool, tier: str, *contents: str) -> tuple[str, Any]:
    """The verdict of a chat, and its usage."""
    messages: list[Any] = [{"role": "user", "content": content} for content in contents]
    with pool.client() as client:
        raw = client.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=2, extra_headers={"x-penstock-tier": tier}
        )
    return raw.headers["x-penstock-verdict"], raw.parse().usage


def test_a_turn_is_admitted_for_what_is_cached_of_it(caching: LivePool) -> None:
    assert ask(caching, "batch", LONG)[0] == "best-effort"
    verdict, usage = ask(caching, "chat", LONG, "and now?")
    assert (verdict, usage.prompt_tokens_details.cached_tokens) == ("admitted", 16000)
    assert ask(caching, "chat", "another " + LONG)[0] == "best-effort"
