"""Admission with what an engine's prefix cache holds, by real processes."""

from typing import Any

import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from live.pool_file import MODEL

TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "250ms", "tpot": "500ms"}},  # 6,000 tokens take half a second
    {"name": "batch", "bestEffort": True},
]
LONG = "a word  " * 3000


@pytest.fixture(scope="module")
def caching(open_module_pool: OpenPool) -> LivePool:
    return open_module_pool(tiers=TIERS, engine={"prefixCaching": True, "kvCacheTokens": 40000})


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
    assert (verdict, usage.prompt_tokens_details.cached_tokens) == ("admitted", 6000)
    assert ask(caching, "chat", "another " + LONG)[0] == "best-effort"
