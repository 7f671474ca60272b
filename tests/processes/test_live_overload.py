"""Hops, best effort and 429: what a request meets when replicas are full.

A replica is filled by one prompt that takes nearly all of its KV memory and an answer that lasts. The next
such prompt does not fit there, whatever the machine's speed.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from live.open_pool import OpenPool
from live.pool import LivePool
from patience import until

KV_TOKENS = 8192
PROMPT = list(range(1, 6001))
LONG = 2000

SMALL_MEMORY: dict[str, Any] = {"kvCacheTokens": KV_TOKENS, "maxModelLen": KV_TOKENS}
TIERS: list[dict[str, Any]] = [
    {"name": "chat", "slo": {"ttft": "20s", "tpot": "500ms"}},
    {"name": "instant", "slo": {"ttft": "20s", "tpot": "10us"}},
    {"name": "batch", "bestEffort": True},
]


@pytest.fixture(scope="module")
def small(open_module_pool: OpenPool) -> LivePool:
    """Two replicas. Router `main` answers 429 if both reject, `serving` serves best effort."""
    pool = open_module_pool(2, engine=SMALL_MEMORY, tiers=TIERS, routing={"backup": "reject"})
    pool.start_router("serving", routing={"backup": "best-effort"})
    return pool


@contextmanager
def occupied(pool: LivePool, replicas: int) -> Iterator[set[str]]:
    """Fill this many replicas for the time of the block; yield their names."""
    until(lambda: pool.running() == 0, "engines idle")
    with pool.client() as client:
        streams = [
            client.completions.create(
                model=pool.model,
                prompt=PROMPT,
                max_tokens=LONG,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for _ in range(replicas)
        ]
        try:
            yield {stream.response.headers["x-penstock-replica"] for stream in streams}
        finally:
            for stream in streams:
                stream.close()
    until(lambda: pool.running() == 0, "engines idle again")


def ask(pool: LivePool, tier: str = "chat", max_tokens: int = 1, router: str = "main") -> dict[str, str]:
    """The response headers of a request that needs the same memory."""
    with pool.client(router) as client:
        raw = client.completions.with_raw_response.create(
            model=pool.model,
            prompt=PROMPT,
            max_tokens=max_tokens,
            extra_headers={"x-penstock-tier": tier},
        )
        return dict(raw.headers)


def test_a_request_hops_from_a_full_replica_to_the_next(small: LivePool) -> None:
    with occupied(small, 1) as full:
        output = [ask(small) for _ in range(2)]
    assert {one["x-penstock-replica"] for one in output} == set(small.replicas) - full
    assert sorted(one["x-penstock-hops"] for one in output) == ["1", "2"], (
        "in turn, one of them asked the full"
    )
    assert {one["x-penstock-verdict"] for one in output} == {"admitted"}


def test_at_full_replicas_a_request_is_best_effort_if_the_pool_permits(small: LivePool) -> None:
    with ThreadPoolExecutor(1) as beside:
        with occupied(small, 2) as full:
            assert full == set(small.replicas)
            requested = beside.submit(ask, small, router="serving")
            until(lambda: small.running() == 3, "the third request waits at an engine")
        output = requested.result()
    assert output["x-penstock-verdict"] == "best-effort"
    assert output["x-penstock-hops"] == "2", "two replicas rejected it; best effort is no further hop"


def test_at_full_replicas_a_request_is_429_if_the_pool_rejects(small: LivePool) -> None:
    with occupied(small, 2) as full, pytest.raises(openai.RateLimitError) as refusal:
        assert full == set(small.replicas)
        ask(small)
    error = refusal.value
    assert error.type == "slo_unattainable"
    assert error.code == "slo_unattainable"
    assert int(error.response.headers["retry-after"]) >= 1
    assert error.response.headers["x-request-id"]
    assert "x-penstock-replica" not in error.response.headers
    assert "x-should-retry" not in error.response.headers


def test_a_rejected_request_is_served_once_there_is_room(small: LivePool) -> None:
    with occupied(small, 2), pytest.raises(openai.RateLimitError):
        ask(small)
    assert ask(small)["x-penstock-verdict"] == "admitted"


def test_the_official_client_retries_after_the_given_time(small: LivePool) -> None:
    """The official client's own retries carry a request over a short overload."""
    with occupied(small, 2), small.client(max_retries=2) as client:
        answer = client.completions.create(model=small.model, prompt=[1, 2, 3], max_tokens=1)
    assert answer.choices


def test_a_rejection_with_never_asks_clients_not_to_retry(small: LivePool) -> None:
    with pytest.raises(openai.RateLimitError) as refusal:
        ask(small, "instant", max_tokens=50)
    assert refusal.value.response.headers["x-should-retry"] == "false"
    assert "retry-after" not in refusal.value.response.headers


def test_best_effort_waits_for_room_and_is_served(small: LivePool) -> None:
    with ThreadPoolExecutor(1) as beside:
        with occupied(small, 2):
            requested = beside.submit(ask, small, "batch")
            until(lambda: small.running() == 3, "the third request waits at an engine")
            assert not requested.done()
        output = requested.result()
    assert output["x-penstock-verdict"] == "best-effort"
    assert output["x-penstock-hops"] == "1"
