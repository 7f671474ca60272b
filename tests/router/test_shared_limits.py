"""A router's part in shared limits: its requests to Redis, its reports, and its local decisions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from loop_time import freeze, skip, thaw, turns
from penstock_pool.application_spec import ApplicationLimits
from penstock_routing.applications import shared_limits
from penstock_routing.applications.shared_limits import (
    ANSWER_S,
    CONNECT_S,
    MOST_QUERIES,
    RENEW_S,
    SharedLimits,
)
from penstock_routing.applications.usage_ledger import Limit, LimitDecision, LimitUsage, OverLimit, Ticket
from penstock_routing.connections import redis_client
from penstock_routing.connections.backoff import Backoff
from scripted.redis import CountingBackoff, ScriptCall, ScriptedRedis
from structlog.testing import capture_logs

LIMITS = ApplicationLimits.model_validate({"concurrentRequests": 5, "tokensPerMinute": 900})
USAGE = LimitUsage(3, 2.5, 40, 7.25)


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedRedis]:
    """The Redis at every address, while the clock stops."""
    freeze()
    server = ScriptedRedis()
    monkeypatch.setattr(redis_client, "Redis", server)
    monkeypatch.setattr(shared_limits, "monotonic", lambda: asyncio.get_running_loop().time())
    yield server
    thaw()


def part_of(backoff: Backoff | None = None) -> SharedLimits:
    urls = (f"redis://h:{number}" for number in range(1, 100))
    return SharedLimits(lambda: next(urls), "pool", {"ide": LIMITS}, backoff or Backoff(Random(1), 0.0, 0.0))


@asynccontextmanager
async def running(shared: SharedLimits) -> AsyncIterator[SharedLimits]:
    task = asyncio.create_task(shared.run())
    await turns()
    try:
        yield shared
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled()
    assert not shared.connected


async def asked(shared: SharedLimits, *tokens: int) -> "list[asyncio.Task[LimitDecision | None]]":
    """Start a request to the limits for each number of tokens."""
    tasks = [asyncio.create_task(shared.ask("ide", each)) for each in tokens]
    await turns()
    return tasks


async def answers(shared: SharedLimits, *tokens: int) -> list[Any]:
    return [task.result() for task in await asked(shared, *tokens)]


def reported(redis: ScriptedRedis) -> list[tuple[int, dict[int, int], list[int]]]:
    """Return the content of each call: requests in progress, corrections, requests asked for."""
    return [(call.open_requests, call.corrections, call.asks) for call in redis.calls]


async def test_redis_decides_and_returns_the_usage(redis: ScriptedRedis) -> None:
    redis.room = 1
    async with running(part_of()) as shared:
        verdicts = await answers(shared, 30, 40)
    assert verdicts == [
        LimitDecision(Ticket(100, 30), USAGE),
        LimitDecision(OverLimit(Limit.REQUESTS_PER_MINUTE, 1.5), USAGE),
    ]


async def test_a_call_carries_its_application_its_router_and_the_limits(redis: ScriptedRedis) -> None:
    async with running(part_of()) as one, running(part_of()) as other:
        await answers(one, 1)
        await answers(other, 2)
    first, second = redis.calls
    assert first == ScriptCall("pool:ide", first.router, 0, (5, -1, 900), {}, [1])
    assert first.router != second.router


@pytest.mark.parametrize(
    ("refusal", "refused"),
    [
        ((1, 1000), OverLimit(Limit.CONCURRENT_REQUESTS, 1.0)),
        ((3, 0), OverLimit(Limit.TOKENS_PER_MINUTE, 0.0)),
        ((3, -1), OverLimit(Limit.TOKENS_PER_MINUTE, None)),
    ],
)
async def test_a_refusal_has_its_limit_and_retry_after(
    redis: ScriptedRedis, refusal: tuple[int, int], refused: OverLimit
) -> None:
    redis.room, redis.refusal = 0, refusal
    async with running(part_of()) as shared:
        assert await answers(shared, 1) == [LimitDecision(refused, USAGE)]


async def test_requests_that_arrive_during_a_call_share_the_next_one(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        redis.answering.clear()
        first = await asked(shared, 1)
        others = await asked(shared, 2) + await asked(shared, 3)
        assert reported(redis) == [(0, {}, [1])]
        redis.answering.set()
        await turns()
        assert reported(redis) == [(0, {}, [1]), (1, {}, [2, 3])]
        assert all(isinstance(task.result().verdict, Ticket) for task in first + others)  # type: ignore[union-attr]
    assert redis.most_under_way == 1


async def test_a_call_asks_about_a_bounded_number_and_the_next_about_the_rest(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        verdicts = await answers(shared, *range(MOST_QUERIES + 3))
        assert [len(call.asks) for call in redis.calls] == [MOST_QUERIES, 3]
        assert redis.calls[1].open_requests == MOST_QUERIES
        assert [answer.verdict.tokens for answer in verdicts] == list(range(MOST_QUERIES + 3))


async def test_an_end_is_sent_with_the_difference_from_the_expected_usage(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        tickets = [answer.verdict for answer in await answers(shared, 30, 40, 50, 60)]
        redis.calls.clear()
        for ticket, used in zip(tickets, (20, 41, 50, 0), strict=True):
            shared.ended("ide", ticket, used)
        await turns()
        assert reported(redis) == [(0, {100: -10 + 1 - 60}, [])]


async def test_an_end_that_used_the_expected_tokens_only_frees_its_place(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        (answer,) = await answers(shared, 30)
        redis.calls.clear()
        shared.ended("ide", answer.verdict, 30)
        await turns()
        assert reported(redis) == [(0, {}, [])]


async def test_a_refused_request_is_not_open(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        await answers(shared, 1)
        redis.room = 0
        await answers(shared, 1)
        redis.room = 9
        await answers(shared, 1)
        assert [call.open_requests for call in redis.calls] == [0, 1, 1]


async def test_leases_are_renewed_only_while_requests_are_open(
    redis: ScriptedRedis,
) -> None:
    async with running(part_of()) as shared:
        await skip(RENEW_S)
        assert redis.calls == []
        (answer,) = await answers(shared, 30)
        redis.calls.clear()
        await skip(RENEW_S / 2)
        assert redis.calls == []
        for _ in range(3):
            await skip(RENEW_S)
        assert reported(redis) == [(1, {}, [])] * 3
        shared.ended("ide", answer.verdict, 30)
        await turns()
        redis.calls.clear()
        for _ in range(3):
            await skip(RENEW_S)
        assert redis.calls == []


async def test_a_request_cancelled_before_redis_answers_is_released(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        redis.answering.clear()
        asking = await asked(shared, 30, 40)
        asking[0].cancel()
        await asyncio.wait(asking[:1])
        redis.answering.set()
        await turns()
        await turns()
        assert asking[0].cancelled()
        assert reported(redis)[1:] == [(1, {100: -30}, [])]


async def test_a_request_cancelled_before_its_refusal_sends_no_end(
    redis: ScriptedRedis,
) -> None:
    redis.room = 0
    async with running(part_of()) as shared:
        redis.answering.clear()
        (asking,) = await asked(shared, 30)
        asking.cancel()
        await asyncio.wait([asking])
        redis.answering.set()
        await turns()
        assert reported(redis) == [(0, {}, [30])]


@pytest.mark.parametrize(
    ("room", "down", "reported_then"),
    [
        (2, None, (1, {100: -30}, [])),
        (1, None, None),
        (2, ConnectionError("gone"), (1, {}, [])),
    ],
    ids=["admitted", "refused", "decided locally"],
)
async def test_a_request_cancelled_after_redis_has_answered_is_released(
    redis: ScriptedRedis, room: int, down: Exception | None, reported_then: Any
) -> None:
    async with running(part_of()) as shared:
        redis.answering.clear()

        async def asks_and_cancels_the_other() -> None:
            await shared.ask("ide", 10)
            redis.down = None
            other.cancel()

        one = asyncio.create_task(asks_and_cancels_the_other())
        other = asyncio.create_task(shared.ask("ide", 30))
        await turns()
        redis.room, redis.down = room, down
        redis.calls.clear()
        redis.answering.set()
        await turns()
        await turns()
        assert one.done()
        assert other.cancelled()
        assert reported(redis) == ([] if reported_then is None else [reported_then])


async def test_without_redis_each_router_decides_locally_and_reports_later(
    redis: ScriptedRedis,
) -> None:
    redis.answering.clear()
    async with running(part_of()) as shared:
        assert not shared.connected
        assert await answers(shared, 30, 40, 50) == [None] * 3
        shared.ended("ide", None, 99)
        redis.answering.set()
        await turns()
        assert shared.connected
        assert reported(redis) == [(2, {}, [])]


@pytest.mark.parametrize("down", [ConnectionError("gone"), ValueError("nonsense")])
async def test_after_a_failed_call_each_router_decides_locally(redis: ScriptedRedis, down: Exception) -> None:
    async with running(part_of()) as shared:
        redis.answering.clear()
        in_the_call = await asked(shared, 30)
        waiting = await asked(shared, 40)
        redis.down = down
        redis.answering.set()
        with capture_logs() as output:
            await asyncio.wait([*in_the_call, *waiting])
            assert not shared.connected
            await turns()
        assert [task.result() for task in in_the_call + waiting] == [None, None]
        assert await answers(shared, 50) == [None]
        assert len([line for line in output if line["event"] == "limits are not shared"]) == 1
        redis.down = None
        redis.calls.clear()
        await turns()
        assert reported(redis) == [(3, {}, [])]
        (answer,) = await answers(shared, 60)
        assert isinstance(answer, LimitDecision)
    assert redis.open_connections == 0


async def test_a_call_has_a_timeout(redis: ScriptedRedis) -> None:
    async with running(part_of()) as shared:
        redis.answering.clear()
        (asking,) = await asked(shared, 30)
        await skip(ANSWER_S * 0.9)
        assert not asking.done()
        await skip(ANSWER_S * 0.2)
        assert asking.result() is None
        assert not shared.connected


async def test_a_connection_has_a_timeout(redis: ScriptedRedis) -> None:
    redis.answering.clear()
    async with running(part_of()):
        await skip(CONNECT_S * 0.9)
        assert len(redis.urls) == 1
        await skip(CONNECT_S * 0.2)
        assert len(redis.urls) > 1


async def test_the_address_is_read_again_for_each_connection_and_calls_are_never_repeated(
    redis: ScriptedRedis,
) -> None:
    async with running(part_of()) as shared:
        redis.down = ConnectionError("gone")
        await answers(shared, 1)
        redis.down = None
        await turns()
        assert shared.connected
    assert redis.urls[:2] == ["redis://h:1", "redis://h:2"]
    bounds = (redis.options["socket_connect_timeout"], redis.options["socket_timeout"])
    assert (*bounds, redis.options["retry"].get_retries()) == (CONNECT_S, CONNECT_S, 0)


async def test_an_unreadable_address_is_tried_again(redis: ScriptedRedis) -> None:
    urls = iter([FileNotFoundError("no such file"), None])

    def url() -> str:
        if (error := next(urls)) is not None:
            raise error
        return "redis://h"

    with capture_logs() as output:
        async with running(
            SharedLimits(url, "pool", {"ide": LIMITS}, Backoff(Random(1), 0.0, 0.0))
        ) as shared:
            assert shared.connected
    assert [line["why"] for line in output if "why" in line] == ["FileNotFoundError: no such file"]


async def test_each_outage_is_logged_once_however_often_it_is_tried(redis: ScriptedRedis) -> None:
    with capture_logs() as output:
        async with running(part_of()) as shared:
            for _ in range(2):
                redis.down = ConnectionError("gone")
                await answers(shared, 1)
                await turns()
                redis.down = None
                await turns()
                assert shared.connected
    assert len(redis.urls) > 4
    events = [line["event"] for line in output]
    assert events == ["limits are shared", *["limits are not shared", "limits are shared"] * 2]


async def test_the_backoff_is_reset_by_a_good_connection(redis: ScriptedRedis) -> None:
    backoff = CountingBackoff(Random(1))
    redis.down = ConnectionError("gone")
    async with running(part_of(backoff)) as shared:
        assert backoff.waits > 1
        assert backoff.resets == 0
        redis.down = None
        await turns()
        assert (shared.connected, backoff.resets) == (True, 1)


@pytest.mark.parametrize("down", [None, ConnectionError("gone")], ids=["answers", "fails"])
async def test_a_cancellation_swallowed_by_the_client_library_stops_the_task(
    redis: ScriptedRedis, down: Exception | None
) -> None:
    redis.ignores_cancellation = True
    async with running(part_of()) as shared:
        redis.answering.clear()
        await asked(shared, 30)
        redis.down = down
