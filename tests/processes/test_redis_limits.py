"""Limits of applications over several routers, through a real Redis that stops and restarts."""

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from live.redis import PROGRAM, RedisServer, connected
from patience import PATIENCE_S, eventually
from penstock_pool import Application
from penstock_pool.application_spec import ApplicationLimits
from penstock_routing.applications import shared_limits
from penstock_routing.applications.rate_limits import LimitMetrics, RateLimitGrant, RateLimits
from penstock_routing.applications.shared_limits import (
    LEASE_S,
    SCRIPT,
    SharedLimits,
    over_limit_of,
    script_arguments,
    usage_of,
)
from penstock_routing.applications.usage_ledger import Ledger, Limit, OverLimit, Ticket
from penstock_routing.connections.backoff import Backoff
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis
from structlog.testing import capture_logs

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no redis-server for this machine")


@pytest.fixture
def redis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setattr(shared_limits, "ANSWER_S", 10.0)  # a busy machine is no outage
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.kill()


def limits(**given: int) -> ApplicationLimits:
    return ApplicationLimits.model_validate(given)


class Router:
    """One router's part, for an application `ide`."""

    def __init__(self, redis: RedisServer, of: ApplicationLimits) -> None:
        self.application = Application.model_validate(
            {"name": "ide", "tier": "chat", "keys": {"file": "x"}, "limits": of.model_dump(by_alias=True)}
        )
        self.registry = CollectorRegistry()
        self.shared = SharedLimits(lambda: redis.url, "pool", {"ide": of}, Backoff(Random(1), 0.01, 0.1))
        self.rates = RateLimits({"ide": of}, LimitMetrics(self.registry), self.shared)

    async def run(self) -> None:
        await self.shared.run()

    async def enter(self, tokens: int = 1) -> RateLimitGrant | ApiError:
        try:
            return await self.rates.enter(self.application, tokens)
        except ApiError as error:
            return error

    @property
    def alone(self) -> float | None:
        return self.registry.get_sample_value("penstock_router_limits_decided_locally_total")


def admitted(answers: list[RateLimitGrant | ApiError]) -> list[RateLimitGrant]:
    return [answer for answer in answers if isinstance(answer, RateLimitGrant)]


@pytest.mark.parametrize(
    ("of", "tokens", "wanted"),
    [
        (limits(requestsPerMinute=100), 1, 100),
        (limits(concurrentRequests=30), 1, 30),
        (limits(tokensPerMinute=1000), 7, 142),
        (limits(requestsPerMinute=90, concurrentRequests=80, tokensPerMinute=750), 10, 75),
    ],
    ids=["requests", "at once", "tokens", "all"],
)
async def test_three_routers_together_admit_as_many_as_one(
    redis: RedisServer, of: ApplicationLimits, tokens: int, wanted: int
) -> None:
    three = [Router(redis, of) for _ in range(3)]
    async with connected(*three):
        answers = await asyncio.gather(*(each.enter(tokens) for each in three for _ in range(120)))
    assert len(admitted(answers)) == wanted
    assert all(one.alone == 0 for one in three)


async def test_a_request_that_ends_on_one_router_frees_capacity_on_another(redis: RedisServer) -> None:
    a, b = (Router(redis, limits(concurrentRequests=1, tokensPerMinute=100)) for _ in range(2))
    async with connected(a, b):
        (first,) = admitted([await a.enter(100)])
        refusal = await b.enter(1)
        assert isinstance(refusal, ApiError)
        assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
        first.leave(30)
        await enters(b, 70)


async def enters(router: Router, tokens: int) -> RateLimitGrant:
    async with asyncio.timeout(PATIENCE_S):
        while isinstance(answer := await router.enter(tokens), ApiError):  # noqa: ASYNC110  as clients do
            await asyncio.sleep(0.005)
    return answer


async def test_answers_have_the_remaining_requests_over_all_routers(redis: RedisServer) -> None:
    a, b = (Router(redis, limits(requestsPerMinute=10)) for _ in range(2))
    async with connected(a, b):
        await a.enter()
        (second,) = admitted([await b.enter()])
        assert (b"x-ratelimit-remaining-requests", b"8") in second.headers


async def test_a_request_cancelled_during_the_check_is_removed(redis: RedisServer) -> None:
    a, b = (Router(redis, limits(concurrentRequests=1, tokensPerMinute=100)) for _ in range(2))
    async with connected(a, b):
        redis.signal(signal.SIGSTOP)
        asking = asyncio.create_task(a.enter(100))
        await asyncio.sleep(0)
        await eventually(lambda: not a.shared._due.is_set())
        asking.cancel()
        await asyncio.wait([asking])
        redis.signal(signal.SIGCONT)
        await enters(b, 100)
        assert a.alone == b.alone == 0


async def test_without_redis_limits_are_local_and_shared_again_with_it(
    redis: RedisServer,
) -> None:
    a, b = (Router(redis, limits(concurrentRequests=4)) for _ in range(2))
    with capture_logs() as output:
        async with connected(a, b):
            redis.kill()
            await until_away(a, b)
            alone = admitted([await each.enter() for each in (a, b) for _ in range(6)])
            assert len(alone) == 8
            redis.start()
            await eventually(lambda: a.shared.connected and b.shared.connected)
            for one in alone[:5]:
                one.leave(1)
            await enters(a, 1)
            assert admitted([await each.enter() for each in (a, b)]) == []
    assert len([line for line in output if line["event"] == "limits are not shared"]) == 2


async def until_away(*ours: Router) -> None:
    """Calls find that Redis is gone; what they asked for is decided, and given back."""
    async with asyncio.timeout(PATIENCE_S):
        while any(one.shared.connected for one in ours):
            for one in admitted([await each.enter() for each in ours]):
                one.leave(1)
            await asyncio.sleep(0.005)


async def test_a_redis_that_hangs_delays_no_request(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    router = Router(redis, limits(requestsPerMinute=10))
    async with connected(router):
        monkeypatch.setattr(shared_limits, "ANSWER_S", 0.05)
        monkeypatch.setattr(shared_limits, "CONNECT_S", 0.05)
        redis.signal(signal.SIGSTOP)
        answers = await asyncio.gather(*(router.enter() for _ in range(15)))
        assert len(admitted(answers)) == 10
        assert router.alone == 10
        monkeypatch.setattr(shared_limits, "CONNECT_S", 10.0)
        redis.signal(signal.SIGCONT)
        await eventually(lambda: router.shared.connected)


async def test_a_script_that_redis_has_lost_is_loaded_again(redis: RedisServer) -> None:
    router = Router(redis, limits(requestsPerMinute=10))
    async with connected(router), Redis.from_url(redis.url) as administrator:
        await administrator.script_flush()
        await router.enter()
        await eventually(lambda: router.shared.connected)
        before = router.alone
        await router.enter()
        assert router.alone == before


class Script:
    """The script as one router calls it, at moments that a test chooses."""

    def __init__(self, redis: Redis, of: ApplicationLimits, router: str = "me") -> None:
        self.redis, self.of, self.router = redis, of, router
        self.open = 0
        self.corrections: dict[int, int] = {}

    async def __call__(self, now_s: float, *asks: int) -> list[int]:
        arguments = script_arguments(
            self.router, self.open, self.of, self.corrections, asks, now_ms=round(now_s * 1000)
        )
        self.corrections = {}
        reply = await self.redis.eval(SCRIPT.decode(), 1, "key", *map(str, arguments))
        self.open += sum(code == 0 for code in reply[5::2])
        return cast("list[int]", reply)


@pytest.mark.parametrize("seed", range(20))
async def test_redis_decides_as_a_single_router(redis: RedisServer, seed: int) -> None:
    random = Random(seed)
    of = limits(concurrentRequests=4, requestsPerMinute=12, tokensPerMinute=150)
    ledger, now_s, under_way = Ledger(of), 1000.0, list[Ticket]()
    async with Redis.from_url(redis.url) as client:
        script = Script(client, of)
        for _ in range(150):
            now_s += random.choice((0.0, 0.125, 0.5, 1.0, 7.25))
            for _ in range(random.randrange(3)):
                if under_way:
                    ticket, used = under_way.pop(random.randrange(len(under_way))), random.randrange(40)
                    ledger.leave(now_s, ticket, used)
                    script.open -= 1
                    change = used - ticket.tokens
                    script.corrections[ticket.slot] = script.corrections.get(ticket.slot, 0) + change
                    await script(now_s)
            tokens = random.choice((1, 10, 30, 151))
            mine, reply = ledger.enter(now_s, tokens), await script(now_s, tokens)
            theirs = Ticket(reply[0], tokens) if reply[5] == 0 else over_limit_of(reply[5], reply[6])
            assert theirs == mine
            assert usage_of(reply) == ledger.usage(now_s)
            if isinstance(mine, Ticket):
                under_way.append(mine)


async def test_requests_of_a_crashed_router_are_released_after_its_lease(redis: RedisServer) -> None:
    of = limits(concurrentRequests=3)
    async with Redis.from_url(redis.url) as client:
        dead, alive = Script(client, of, "dead"), Script(client, of, "alive")
        await dead(1000.0, 1, 1)
        assert (await alive(1000.0, 1, 1))[5:] == [0, 0, 1, 1000]
        assert (await alive(1000.0 + LEASE_S - 0.001, 1))[5] == 1
        assert (await alive(1000.0 + LEASE_S, 1, 1, 1))[5::2] == [0, 0, 1]


async def test_a_router_that_renews_its_lease_keeps_its_open_requests_counted(redis: RedisServer) -> None:
    of = limits(concurrentRequests=1)
    async with Redis.from_url(redis.url) as client:
        busy, other = Script(client, of, "busy"), Script(client, of, "other")
        await busy(1000.0, 1)
        await busy(1000.0 + LEASE_S - 1)
        assert (await other(1000.0 + LEASE_S + 1, 1))[5] == 1


async def test_keys_in_redis_are_bounded_and_expire(redis: RedisServer) -> None:
    of = limits(concurrentRequests=5, requestsPerMinute=10_000, tokensPerMinute=10_000)
    async with Redis.from_url(redis.url) as client:
        for second in range(300):
            script = Script(client, of, f"router-{second}")
            await script(1000.0 + second, 1)
        assert await client.hlen("key") <= 2 * 61 + LEASE_S + 1
        assert 0 < await client.pttl("key") <= 61_000 + LEASE_S * 1000


def test_the_limits_of_the_script_are_in_the_order_of_its_arguments() -> None:
    of = limits(concurrentRequests=1, requestsPerMinute=2, tokensPerMinute=3)
    assert script_arguments("me", 0, of, {}, [])[3:6] == [1, 2, 3]
    assert [over_limit_of(code, 5).limit for code in (1, 2, 3)] == [
        Limit.CONCURRENT_REQUESTS,
        Limit.REQUESTS_PER_MINUTE,
        Limit.TOKENS_PER_MINUTE,
    ]
    assert over_limit_of(3, -1) == OverLimit(Limit.TOKENS_PER_MINUTE, None)
