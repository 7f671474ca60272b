"""Placements that routers share: batching, sending, receiving, and ignored messages."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import orjson
import pytest
from loop_time import freeze, skip, thaw, turns
from penstock_routing.connections import redis_client
from penstock_routing.connections.backoff import Backoff
from penstock_routing.replicas.peer_placements import PeerLoad
from penstock_routing.replicas.shared_placements import (
    ANSWER_S,
    BATCH_S,
    HEARTBEAT_S,
    MESSAGE_BYTES,
    MOST_COUNTED,
    SILENCE_S,
    SharedPlacements,
    read_placements,
)
from scripted.redis import CountingBackoff, ScriptedRedis
from structlog.testing import capture_logs


@pytest.fixture
async def redis(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ScriptedRedis]:
    """The Redis at every address, while the clock stops."""
    freeze()
    server = ScriptedRedis()
    monkeypatch.setattr(redis_client, "Redis", server)
    yield server
    thaw()


class Router:
    """One router's part, with received placements and the number of malformed messages."""

    def __init__(self, channel: str = "pool", backoff: Backoff | None = None) -> None:
        self.heard: list[tuple[str, PeerLoad]] = []
        self.malformed = 0
        urls = (f"redis://h:{number}" for number in range(1, 100))
        self.shared = SharedPlacements(lambda: next(urls), channel, backoff or Backoff(Random(1), 0.0, 0.0))

    async def run(self) -> None:
        await self.shared.run(lambda *reported: self.heard.append(reported), self._count)

    def _count(self) -> None:
        self.malformed += 1


@asynccontextmanager
async def running(*routers: Router) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(router.run()) for router in routers]
    await turns()
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)
    assert not any(router.shared.connected for router in routers)


async def test_submits_within_milliseconds_share_a_message(redis: ScriptedRedis) -> None:
    a, b = Router(), Router()
    async with running(a, b):
        a.shared.placed("r0", 100)
        a.shared.placed("r1", 7)
        await turns()
        await skip(BATCH_S / 2)
        assert b.heard == []
        a.shared.placed("r0", 50)
        await skip(BATCH_S / 2)
        assert b.heard == [("r0", PeerLoad(2, 150)), ("r1", PeerLoad(1, 7))]
        assert a.heard == []
        a.shared.placed("r0", 3)
        await turns()
        await skip(BATCH_S)
        assert b.heard[2:] == [("r0", PeerLoad(1, 3))]


async def test_pools_do_not_receive_each_others_placements(redis: ScriptedRedis) -> None:
    a, other = Router(), Router("another")
    async with running(a, other):
        a.shared.placed("r0", 1)
        await turns()
        await skip(BATCH_S)
        assert other.heard == []


async def test_a_connection_counts_once_its_own_message_returns(redis: ScriptedRedis) -> None:
    redis.answering.clear()
    router = Router()
    async with running(router):
        assert len(redis.subscriptions) == 1
        assert not router.shared.connected
        redis.answering.set()
        await turns()
        assert router.shared.connected


async def test_placements_made_while_disconnected_are_dropped(redis: ScriptedRedis) -> None:
    redis.answering.clear()
    a, b = Router(), Router()
    async with running(a, b):
        a.shared.placed("r0", 100)
        redis.answering.set()
        await skip(BATCH_S)
        assert a.shared.connected
        assert b.heard == []


async def test_without_traffic_heartbeats_keep_the_connection(redis: ScriptedRedis) -> None:
    router = Router()
    async with running(router):
        assert len(redis.published) == 1
        for beats in range(2, 6):
            await skip(HEARTBEAT_S / 2)
            assert len(redis.published) == beats - 1
            await skip(HEARTBEAT_S / 2)
            assert len(redis.published) == beats
        assert len(redis.urls) == 1
    assert orjson.loads(redis.published[-1])["placed"] == {}


async def test_a_silent_connection_counts_as_lost(redis: ScriptedRedis) -> None:
    router = Router()
    async with running(router):
        redis.answering.clear()
        with capture_logs() as output:
            await skip(SILENCE_S * 0.9)
            assert router.shared.connected
            await skip(SILENCE_S * 0.2)
            assert not router.shared.connected
            redis.answering.set()
            await turns()
        assert router.shared.connected
    assert [line["event"] for line in output] == ["redis unavailable", "redis connected"]
    assert output[0]["why"] == "TimeoutError: no message for 6 s"


async def test_an_outage_is_logged_once_and_so_is_its_end(redis: ScriptedRedis) -> None:
    router = Router()
    with capture_logs() as output:
        async with running(router):
            for _ in range(2):
                redis.down = ConnectionError("gone")
                router.shared.placed("r0", 1)
                await turns()
                await skip(BATCH_S)
                assert not router.shared.connected
                redis.down = None
                await turns()
                assert router.shared.connected
    assert len(redis.urls) > 4
    assert [line["event"] for line in output] == [
        "redis connected",
        *["redis unavailable", "redis connected"] * 2,
    ]
    assert {line["why"] for line in output if "why" in line} == {"ConnectionError: gone"}
    assert redis.subscriptions == []
    assert redis.open_connections == 0


async def test_placements_pending_at_a_disconnect_are_not_published_later(redis: ScriptedRedis) -> None:
    a, b = Router(), Router()
    async with running(a, b):
        a.shared.placed("r0", 1)
        redis.subscriptions[0].receive("pool", {"type": "message"})  # its connection breaks on that
        await turns()
        assert len(redis.urls) == 3
        await skip(BATCH_S)
        assert a.shared.connected
        assert b.heard == []


async def test_the_backoff_is_reset_by_a_good_connection(redis: ScriptedRedis) -> None:
    backoff = CountingBackoff(Random(1))
    redis.down = ConnectionError("gone")
    async with running(Router(backoff=backoff)):
        assert backoff.waits > 1
        assert backoff.resets == 0
        redis.down = None
        await skip(HEARTBEAT_S)
        await skip(HEARTBEAT_S)
        assert backoff.resets == 1


async def test_connections_are_bounded_in_time_and_number(redis: ScriptedRedis) -> None:
    async with running(Router()):
        assert redis.urls == ["redis://h:1"]
    assert redis.options == {
        "socket_connect_timeout": ANSWER_S,
        "socket_timeout": ANSWER_S,
        "socket_keepalive": True,
        "max_connections": 2,  # one to listen, one to speak
    }


def message(**changes: Any) -> bytes:
    return orjson.dumps({"router": "other", "placed": {"r0": [1, 2]}} | changes)


@pytest.mark.parametrize(
    "nonsense", [b"", b"[]", message(placed=7), message(placed={"r0": [1]}), message(placed={"r0": [-1, 0]})]
)
async def test_an_invalid_message_is_counted_and_ignored(redis: ScriptedRedis, nonsense: bytes) -> None:
    router = Router()
    async with running(router):
        redis.deliver("pool", nonsense)
        redis.deliver("pool", message())
        await turns()
        assert (router.malformed, router.heard) == (1, [("r0", PeerLoad(1, 2))])
        assert router.shared.connected


@pytest.mark.parametrize(("count", "is_one"), [(0, True), (MOST_COUNTED, True), (MOST_COUNTED + 1, False)])
def test_counts_have_a_bound(count: int, is_one: bool) -> None:
    output = message(placed={"r0": [count, count]})
    if is_one:
        assert read_placements(output) == ("other", [("r0", PeerLoad(count, count))])
    else:
        with pytest.raises(ValueError, match="not an integer"):
            read_placements(output)


def test_messages_have_a_bound() -> None:
    output = message()
    longest = output + b" " * (MESSAGE_BYTES - len(output))
    assert read_placements(longest)[0] == "other"
    with pytest.raises(ValueError, match="longer"):
        read_placements(longest + b" ")


@pytest.mark.parametrize("down", [None, TimeoutError("late")])
async def test_a_cancellation_swallowed_by_the_client_library_still_stops_the_task(
    redis: ScriptedRedis, down: Exception | None
) -> None:
    redis.answering.clear()
    redis.ignores_cancellation = True
    task = asyncio.create_task(Router().run())
    await turns()
    redis.down = down
    task.cancel()
    await turns()
    assert task.cancelled()
