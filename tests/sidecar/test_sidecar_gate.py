"""The gate before an engine without a policy: a scripted engine with two slots."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Request, new_job
from penstock_core.policies import build
from penstock_proto import replica_pb2 as wire
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from structlog.testing import capture_logs

from tests.sidecar.conftest import DONE, SLOTS, TOKEN, Engine, Exchange, Rig, Router

USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}\n\n'


class LastFirst:
    """A policy that serves the last request first, one at a time; `broken` ones fail."""

    def __init__(self) -> None:
        self.broken = False

    def start(self) -> int:
        return 0

    def admit(self, view: ReplicaView, new: Any) -> Any:
        raise AssertionError("the rig's own policy admits")

    def step(self, view: ReplicaView, memory: int) -> tuple[Step, int]:
        if self.broken:
            raise ValueError("broken")
        return Step({job.request.id: job.pending_tokens for job in reversed(view.waiting)}), memory + 1


@pytest.fixture
def policy() -> LastFirst:
    return LastFirst()


@pytest.fixture
async def rig(engine: Engine, bounds: Bounds, policy: LastFirst) -> AsyncIterator[Rig]:
    made = Rig(engine, bounds, reads_fields=False, held_by=policy)
    async with made.serving():
        yield made


async def ends(exchange: Exchange) -> None:
    await exchange.send(DONE)
    await exchange.end()


async def begins(engine: Engine, number: int) -> Exchange:
    exchange = await engine.asked(number)
    await exchange.begin()
    await exchange.send(TOKEN)
    return exchange


def ids(engine: Engine) -> list[str]:
    return [exchange.headers["x-request-id"] for exchange in engine.exchanges]


async def fills_slots(engine: Engine, router: Router) -> list[Exchange]:
    """As many as there are slots, all decoding."""
    in_slots = []
    for id in range(1, SLOTS + 1):
        await router.submit(id)
        in_slots.append(await begins(engine, id))
        await eventually(lambda id=id: "output" in router.kinds(id))  # type: ignore[misc]
    return in_slots


async def test_requests_beyond_the_engines_slots_are_held_and_released_by_policy(
    engine: Engine, rig: Rig, router: Router
) -> None:
    first, second = await fills_slots(engine, router)
    await router.submit(3)
    await router.submit(4)
    assert (await router.first(3)).HasField("admitted") and (await router.first(4)).HasField("admitted")
    await eventually(lambda: rig.metric("held") == 2)
    assert ids(engine) == ["r1", "r2"]
    await ends(first)
    fourth = await begins(engine, 3)
    assert ids(engine) == ["r1", "r2", "r4"]
    await ends(second)
    third = await begins(engine, 4)
    assert ids(engine) == ["r1", "r2", "r4", "r3"]
    await ends(fourth)
    await ends(third)
    for id in (1, 2, 3, 4):
        assert (await router.ended(id)).HasField("finished")
    assert rig.metric("held") == 0


async def test_a_request_cancelled_while_held_never_reaches_the_engine(
    engine: Engine, rig: Rig, router: Router
) -> None:
    first, _ = await fills_slots(engine, router)
    await router.submit(3)
    await router.submit(4)
    await eventually(lambda: rig.metric("held") == 2)
    await router.cancel(4)
    await eventually(lambda: rig.replica.unfinished == 3)
    assert rig.metric("held") == 1
    await ends(first)
    await begins(engine, 3)
    assert ids(engine) == ["r1", "r2", "r3"]
    assert rig.metric("ends_total", tier="chat", end="cancelled") == 1


async def test_held_requests_are_planned_for(engine: Engine, rig: Rig, router: Router) -> None:
    await fills_slots(engine, router)
    await router.submit(3)
    await eventually(lambda: rig.metric("held") == 1)
    view = rig.mirror.view(0.0, rig.estimates.model)
    assert (len(view.running), len(view.waiting)) == (2, 1)


async def test_an_engine_that_goes_down_returns_held_requests_immediately(
    engine: Engine, rig: Rig, router: Router
) -> None:
    first, _ = await fills_slots(engine, router)
    await router.submit(3)
    await eventually(lambda: rig.metric("held") == 1)
    engine.stop_listening()
    assert (await router.ended(3)).failed.failure == wire.FAILURE_ENGINE_LOST
    await ends(first)
    assert (await router.ended(1)).HasField("finished")
    assert ids(engine) == ["r1", "r2"]


async def test_if_the_policy_fails_requests_are_released_in_order_of_arrival(
    engine: Engine, rig: Rig, router: Router, policy: LastFirst
) -> None:
    policy.broken = True
    with capture_logs() as logs:
        first, _ = await fills_slots(engine, router)
        await router.submit(3)
        await router.submit(4)
        await eventually(lambda: rig.metric("held") == 2)
        await ends(first)
        await begins(engine, 3)
    assert ids(engine) == ["r1", "r2", "r3"]
    assert rig.metric("release_failures_total") > 1
    failures = [entry for entry in logs if "release decision failed" in entry["event"]]
    assert len(failures) == 1


@pytest.mark.parametrize("status", [429, 503])
async def test_an_engine_without_room_sends_the_router_to_the_next_replica(
    engine: Engine, rig: Rig, router: Router, status: int
) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await exchange.begin(status, "application/json")
    await exchange.end()
    assert (await router.ended(1)).rejected.reason == wire.REASON_QUEUE_FULL
    assert router.kinds(1) == ["admitted", "rejected"]
    assert rig.metric("engine_full_total") == 1
    assert rig.replica.unfinished == 0


async def test_an_engine_that_refused_gets_no_more_than_it_accepted(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    first = await begins(engine, 1)
    await router.submit(2)
    full = await engine.asked(2)
    await full.begin(503, "application/json")
    await full.end()
    await router.ended(2)
    await router.submit(3)
    await eventually(lambda: rig.metric("held") == 1)
    assert len(engine.exchanges) == 2
    await ends(first)
    await begins(engine, 3)
    assert ids(engine)[-1] == "r3"


async def test_requests_of_other_clients_at_the_engine_take_slots(
    engine: Engine, rig: Rig, router: Router
) -> None:
    engine.metrics_page = (
        b'vllm:num_requests_running{engine="0"} 2.0\nvllm:num_requests_waiting{engine="0"} 0.0\n'
        b'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
    )
    assert rig.gate is not None
    await rig.gate.refresh_load(rig.client.load)
    view = rig.mirror.view(0.0, rig.estimates.model)
    assert (view.limits.running, view.kv.total_blocks) == (1, 750)
    engine.metrics_page = None
    await rig.gate.refresh_load(rig.client.load)
    view = rig.mirror.view(0.0, rig.estimates.model)
    assert (view.limits.running, view.kv.total_blocks) == (2, 1000)


async def test_the_learned_number_of_slots_is_a_metric(engine: Engine, rig: Rig) -> None:
    assert rig.metric("engine_slots") == SLOTS
    engine.metrics_page = b"vllm:num_requests_running 1.0\nvllm:num_requests_waiting 3.0\n"
    assert rig.gate is not None
    for _ in range(2):
        await rig.gate.refresh_load(rig.client.load)
    assert rig.metric("engine_slots") == 1


async def test_an_engine_is_measured_by_its_forwarded_tokens(rig: Rig) -> None:
    assert rig.gate is not None and isinstance(rig.mirror, HoldingMirror)
    rig.mirror.accept(new_job(Request("a", "chat", 0.0, 100, 5000), 4000, False), 0.0)
    rig.mirror.released("a", 0.0)
    for now_s in range(1, 7):
        rig.mirror.passed("a", 1, float(now_s))
        rig.gate.passed("a", 1, float(now_s))
    assert rig.metric("time_model_error_ratio_count") == 1


async def test_merged_tokens_are_counted_by_usage_that_is_removed_for_the_client(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    exchange = await begins(engine, 1)
    assert exchange.body["stream_options"] == {"include_usage": True}
    merged = TOKEN.replace(b"}\n\n", b',"usage":null}\n\n')
    await exchange.send(merged + USAGE[:9])
    await exchange.send(USAGE[9:])
    await ends(exchange)
    assert (await router.ended(1)).finished.completion_tokens == 7
    assert router.data(1) == TOKEN * 2 + DONE


async def test_usage_that_the_client_requested_is_forwarded(engine: Engine, rig: Rig, router: Router) -> None:
    body = {"model": "m", "prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True}}
    await router.submit(1, body)
    exchange = await begins(engine, 1)
    assert exchange.body == body
    await exchange.send(USAGE)
    await ends(exchange)
    await router.ended(1)
    assert router.data(1) == TOKEN + USAGE + DONE


async def test_an_engine_without_stream_options_gets_the_body_unchanged(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    first = await engine.asked(1)
    await first.begin(422, "application/json")
    await first.end()
    again = await begins(engine, 2)
    assert "stream_options" not in again.body
    await ends(again)
    assert (await router.ended(1)).finished.completion_tokens == 1
    await router.submit(2)
    assert "stream_options" not in (await engine.asked(3)).body


async def test_an_invalid_unmodified_body_gets_the_engines_answer(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    for number in (1, 2):
        exchange = await engine.asked(number)
        await exchange.begin(400, "application/json")
        await exchange.send(b'{"error": {"message": "no"}}')
        await exchange.end()
    failed = (await router.ended(1)).failed
    assert (failed.failure, failed.status) == (wire.FAILURE_ENGINE_REFUSED, 400)
    await router.submit(2)
    assert orjson.loads((await engine.asked(3)).raw)["stream_options"] == {"include_usage": True}


async def test_an_engine_with_penstock_s_scheduler_gets_all_requests_immediately(
    engine: Engine, bounds: Bounds
) -> None:
    rig = Rig(engine, bounds, reads_fields=True)
    async with rig.serving(), rig.router() as router:
        for id in range(1, SLOTS + 3):
            await router.submit(id)
        await engine.asked(SLOTS + 2)
        assert all("stream_options" not in exchange.body for exchange in engine.exchanges)


async def test_the_annealers_order_is_applied_before_the_engine(engine: Engine, bounds: Bounds) -> None:
    rig = Rig(engine, bounds, reads_fields=False, held_by=build("annealing"))
    async with rig.serving(), rig.router() as router:
        for id in range(1, 6):
            await router.submit(id)
        for number in range(1, 6):
            await ends(await begins(engine, number))
        for id in range(1, 6):
            assert (await router.ended(id)).HasField("finished")
        assert sorted(ids(engine)) == [f"r{id}" for id in range(1, 6)]


LAST = TOKEN.replace(b'"text"', b'"finish_reason":"stop","text"')


@pytest.mark.parametrize("apart", [False, True])
async def test_an_answer_that_ends_with_a_reason_and_without_done_is_whole(
    engine: Engine, rig: Rig, router: Router, apart: bool
) -> None:
    await router.submit(1)
    exchange = await begins(engine, 1)
    await exchange.send(LAST[:20] if apart else LAST)
    if apart:
        await exchange.send(LAST[20:])
    await exchange.end()
    assert (await router.ended(1)).finished.completion_tokens == 2
    assert router.data(1) == TOKEN + LAST + DONE


async def test_an_answer_that_ends_without_a_reason_was_cut_short(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    exchange = await begins(engine, 1)
    await exchange.end()
    assert (await router.ended(1)).failed.failure == wire.FAILURE_ENGINE_LOST


async def test_a_drain_returns_held_requests(engine: Engine, rig: Rig, router: Router) -> None:
    in_slots = await fills_slots(engine, router)
    await router.submit(3)
    await router.submit(4, {"model": "m", "prompt": [1, 2, 3]})
    await router.first(4)
    draining = asyncio.ensure_future(router.stub.Drain(wire.DrainRequest()))
    for id in (3, 4):
        assert (await router.ended(id)).failed.failure == wire.FAILURE_RETURNED
    for exchange in in_slots:
        await ends(exchange)
    assert (await draining).unfinished == 0
    assert ids(engine) == ["r1", "r2"]
