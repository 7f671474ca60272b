"""Requests that wait while a pool has no replica."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import httpx2
import pytest
from loop_time import freeze, skip, thaw, turns
from patience import eventually
from penstock_proto import replica_pb2 as wire
from penstock_router.routing import waiting_room
from penstock_router.routing.waiting_room import WaitingRoom
from penstock_routing.replicas.replica_set import ReplicaSet
from scripted.replica import Part, ScriptedReplica, chat_answer
from scripted.router import RunningRouter, pool_with, running_router

MAY_BE_NONE = {"minReplicas": 0, "maxReplicas": 2, "wakeTimeout": "20s"}


@asynccontextmanager
async def asleep(replica: ScriptedReplica, **spec: Any) -> AsyncIterator[RunningRouter]:
    """A router whose only replica is not in service yet, in a pool that scales to zero."""
    replica.snapshot = wire.Snapshot(engine_ready=False)
    pool = pool_with(**{"autoscaling": MAY_BE_NONE, **spec})
    async with running_router(replica, pool=pool, ready=False) as router:
        await eventually(lambda: replica.sessions == 1)
        yield router


async def held(router: RunningRouter, requests: int) -> None:
    """Wait until this many requests are held, by the page that the operator reads."""
    async with asyncio.timeout(20):
        while (await router.admin.get("/penstock/v1/demand")).json()["held"] != requests:  # noqa: ASYNC110
            await asyncio.sleep(0.002)


async def test_requests_wait_and_are_served_once_a_replica_is_in_service() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica) as router:
        requested = [asyncio.create_task(router.chat()) for _ in range(5)]
        await held(router, 5)
        assert await router.metric("penstock_router_held_requests") == 5
        replica.send_snapshot()
        assert [answer.status_code for answer in await asyncio.gather(*requested)] == [200] * 5
        await held(router, 0)


async def test_waiting_counts_against_a_requests_targets() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica) as router:
        requested = asyncio.create_task(router.chat())
        await held(router, 1)
        began_s = asyncio.get_running_loop().time()
        await held(router, 1)
        waited_s = asyncio.get_running_loop().time() - began_s
        replica.send_snapshot()
        await requested
        assert replica.parts[0].submit.spent_s >= waited_s


@pytest.mark.parametrize("backup", ["reject", "best-effort"])
async def test_a_request_that_waited_too_long_for_its_targets_is_served_as_best_effort(backup: str) -> None:
    async def too_late_for_its_slo(part: Part) -> None:
        if not part.submit.backup:
            part.reject(wire.REASON_NEVER)
            return
        part.accept_best_effort()
        part.output(chat_answer("late"))
        part.finish()

    replica = ScriptedReplica("r0", too_late_for_its_slo)
    async with asleep(replica, routing={"backup": backup}) as router:
        requested = asyncio.create_task(router.chat())
        await held(router, 1)
        replica.send_snapshot()
        answer = await requested
        assert (answer.status_code, answer.headers["x-penstock-verdict"]) == (200, "best-effort")


async def test_a_best_effort_tier_waits_as_well() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica) as router:
        requested = asyncio.create_task(router.chat({"x-penstock-tier": "batch"}))
        await held(router, 1)
        replica.send_snapshot()
        assert (await requested).status_code == 200
        assert len(replica.parts) == 1


async def test_no_request_waits_longer_than_the_pool_allows() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica, autoscaling={**MAY_BE_NONE, "wakeTimeout": "50ms"}) as router:
        answer = await router.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replicas")
        assert (await router.admin.get("/penstock/v1/demand")).json()["tiers"]["chat"]["rejected"] == 1


async def test_a_client_that_disconnects_cancels_its_request() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica) as router:
        requested = asyncio.create_task(router.chat())
        await held(router, 1)
        requested.cancel()
        await held(router, 0)
        replica.send_snapshot()
        await eventually(lambda: router.replica_set.ready)
        assert (await router.chat()).status_code == 200
        assert len(replica.parts) == 1


async def test_a_request_beyond_the_bound_is_answered_immediately(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_room, "MOST_REQUESTS", 1)
    replica = ScriptedReplica("r0")
    async with asleep(replica) as router:
        requested = asyncio.create_task(router.chat())
        await held(router, 1)
        assert (await router.chat()).status_code == 503
        replica.send_snapshot()
        assert (await requested).status_code == 200


async def test_a_request_waits_again_if_the_replica_leaves_before_it_answers() -> None:
    async def goes_again(part: Part) -> None:
        if len(replica.parts) == 1:
            replica.send_snapshot(engine_ready=False)
            part.reject(wire.REASON_ENGINE_DOWN)
            return
        part.admit()
        part.output(chat_answer("at last"))
        part.finish()

    replica = ScriptedReplica("r0", goes_again)
    async with asleep(replica) as router:
        requested = asyncio.create_task(router.chat())
        await held(router, 1)
        replica.send_snapshot()
        await eventually(lambda: len(replica.parts) == 1)
        await held(router, 1)
        replica.send_snapshot()
        assert (await requested).status_code == 200


async def test_a_replica_without_an_engine_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its snapshot is on the way. The pause is longer here than the wait, so the request never asks again."""
    monkeypatch.setattr(waiting_room, "RETRY_S", 30.0)

    async def has_no_engine(part: Part) -> None:
        part.reject(wire.REASON_ENGINE_DOWN)

    replica = ScriptedReplica("r0", has_no_engine)
    pool = pool_with(autoscaling={**MAY_BE_NONE, "wakeTimeout": "200ms"})
    async with running_router(replica, pool=pool) as router:
        assert (await router.chat()).status_code == 503
    assert len(replica.parts) == 1


async def test_a_router_that_holds_requests_is_ready_without_replicas() -> None:
    async with asleep(ScriptedReplica("r0")) as router:
        assert (await router.http.get("/ready")).status_code == 200


async def test_requests_do_not_wait_in_a_pool_that_always_has_replicas() -> None:
    replica = ScriptedReplica("r0")
    async with asleep(replica, autoscaling={**MAY_BE_NONE, "minReplicas": 1}) as router:
        assert (await router.http.get("/ready")).status_code == 503
        answer: httpx2.Response = await router.chat()
        assert answer.status_code == 503


@asynccontextmanager
async def cut_off(replica: ScriptedReplica, **routing: Any) -> AsyncIterator[RunningRouter]:
    """A router that has lost its only replica, in a pool that always has replicas."""
    async with running_router(replica, pool=pool_with(routing=routing)) as router:
        await replica.die()
        await eventually(lambda: not router.replica_set.ready)
        yield router


async def test_new_requests_wait_for_a_replica_that_was_just_lost() -> None:
    """As after the router was stopped for longer than its sessions last."""
    replica = ScriptedReplica("r0")
    async with cut_off(replica) as router:
        requested = [asyncio.create_task(router.chat()) for _ in range(5)]
        await eventually(lambda: router.app._open == 5)
        await replica.start()
        assert [answer.status_code for answer in await asyncio.gather(*requested)] == [200] * 5


async def test_new_requests_do_not_wait_for_a_replica_that_was_lost_long_ago() -> None:
    async with cut_off(ScriptedReplica("r0"), moveTimeout="1ms") as router:
        answer = await router.chat()
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "no_replicas")


class Replicas:
    """A replica set that accepts work when the test permits."""

    def __init__(self) -> None:
        self.takes = asyncio.Event()
        self.ready = False

    async def wait_until_ready(self) -> None:
        await self.takes.wait()


@pytest.fixture
async def now_s(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[], float]]:
    """A clock that only tests advance."""
    freeze()

    def read() -> float:
        return asyncio.get_running_loop().time()

    monkeypatch.setattr(waiting_room, "monotonic", read)
    yield read
    thaw()


async def waiting(room: WaitingRoom, arrival_s: float) -> "asyncio.Task[bool]":
    task = asyncio.create_task(room.wait(arrival_s))
    await turns()
    return task


async def test_a_request_waits_up_to_its_lifetime(now_s: Callable[[], float]) -> None:
    room = WaitingRoom(cast(ReplicaSet, Replicas()), 10.0)
    task = await waiting(room, now_s() - 9.5)
    assert room.waiting == 1
    await skip(0.4)
    assert not task.done()
    await skip(0.2)
    assert (task.result(), room.waiting) == (False, 0)


async def test_a_request_past_its_lifetime_does_not_wait(now_s: Callable[[], float]) -> None:
    replicas = Replicas()
    replicas.takes.set()
    room = WaitingRoom(cast(ReplicaSet, replicas), 10.0)
    assert not (await waiting(room, now_s() - 10.0)).result()
    assert (await waiting(room, now_s() - 9.5)).result()


async def test_all_waiting_requests_continue_once_a_replica_is_in_service(now_s: Callable[[], float]) -> None:
    replicas = Replicas()
    room = WaitingRoom(cast(ReplicaSet, replicas), 10.0)
    tasks = [await waiting(room, now_s()) for _ in range(3)]
    assert room.waiting == 3
    replicas.takes.set()
    await turns()
    assert [task.result() for task in tasks] == [True] * 3
    assert room.waiting == 0


async def test_a_request_pauses_while_a_replica_is_in_service(now_s: Callable[[], float]) -> None:
    replicas = Replicas()
    replicas.ready = True
    replicas.takes.set()
    task = await waiting(WaitingRoom(cast(ReplicaSet, replicas), 10.0), now_s())
    assert not task.done()
    await skip(waiting_room.RETRY_S)
    assert task.result()


def test_a_room_is_open_if_requests_may_wait() -> None:
    assert WaitingRoom(cast(ReplicaSet, Replicas()), 0.5).open
    assert not WaitingRoom(cast(ReplicaSet, Replicas()), 0.0).open
