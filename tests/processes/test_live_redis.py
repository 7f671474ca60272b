"""Routers that share through a Redis that is killed under their traffic."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest
from live.pool import LivePool
from live.redis import RedisServer
from patience import until

ROUTERS = ("main", "second")


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path, password="secret-of-redis")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def pool(shared_pool: LivePool, redis: RedisServer, tmp_path: Path) -> Iterator[LivePool]:
    """Two routers on the same replicas, both with Redis."""
    shared_pool.restore()
    shared_pool.start_router("second")
    url = tmp_path / "redis-url"
    url.write_text(f"{redis.url}\n")
    for name in ROUTERS:
        shared_pool.kill("router", name)
        shared_pool.start("router", name, "--redis-url-file", str(url))
    shared(shared_pool, 1)
    yield shared_pool


def shared(pool: LivePool, wanted: int) -> None:
    """Wait until every router reports whether it shares."""

    def connected() -> bool:
        return all(pool.router_value("penstock_router_redis_connected", name) == wanted for name in ROUTERS)

    until(connected, f"every router with redis_connected {wanted}")


async def ask(client: openai.AsyncOpenAI, pool: LivePool) -> str:
    answer = await client.completions.create(model=pool.model, prompt="hello", max_tokens=2)
    return answer.choices[0].finish_reason


async def placements_received(client: openai.AsyncOpenAI, pool: LivePool) -> None:
    """Wait until the other router counts this client's requests."""
    metric = "penstock_router_placements_received_total"
    before = pool.router_value(metric, "second")
    async with asyncio.timeout(30):
        while pool.router_value(metric, "second") == before:
            await ask(client, pool)


async def test_a_redis_killed_under_traffic_loses_no_request(pool: LivePool, redis: RedisServer) -> None:
    done, answers = asyncio.Event(), []

    async def steady(client: openai.AsyncOpenAI) -> None:
        while not done.is_set():
            answers.append(await ask(client, pool))

    async with pool.async_client() as one, pool.async_client("second") as other:
        clients = [asyncio.create_task(steady(client)) for client in (one, one, other, other)]
        redis.kill()
        await asyncio.to_thread(shared, pool, 0)
        without = len(answers)
        await asyncio.to_thread(until, lambda: len(answers) >= without + 20, "requests without Redis")
        redis.start()
        await asyncio.to_thread(shared, pool, 1)
        await placements_received(one, pool)
        done.set()
        await asyncio.gather(*clients)
    assert set(answers) == {"length"}
    output = "".join(text for _, text in pool.logs())
    assert "redis unavailable" in output
    assert "secret-of-redis" not in output
