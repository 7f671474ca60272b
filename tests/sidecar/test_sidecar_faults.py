import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import grpc
import pytest
from patience import eventually
from penstock_core.domain.verdict import Reason
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.grpc.status import RpcError, Status
from penstock_sidecar.bounds import Bounds

from tests.sidecar.conftest import DONE, TOKEN, Engine, Exchange, Rig, Router


@pytest.fixture
def bounds() -> Bounds:
    return replace(
        Bounds(),
        probe_s=0.02,
        requests=8,
        best_effort=2,
        answer_bytes=4096,
        outbox_bytes=1 << 20,
        frame_bytes=1 << 16,
    )


async def streaming(engine: Engine, number: int = 1) -> Exchange:
    """The request of this number, with one token out."""
    exchange = await engine.asked(number)
    await exchange.begin()
    await exchange.send(TOKEN)
    return exchange


def lost(event: wire.Event) -> bool:
    return event.failed.failure == wire.FAILURE_ENGINE_LOST and event.failed.status == 502


async def test_a_cancel_closes_the_engines_stream(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1)
    waiting = await engine.asked()
    await router.submit(2)
    started = await streaming(engine, 2)
    await eventually(lambda: "output" in router.kinds(2))
    await router.cancel(1)
    await router.cancel(2)
    await waiting.closed.wait()
    await started.closed.wait()
    await eventually(lambda: rig.replica.unfinished == 0)
    assert rig.metric("ends_total", tier="chat", end="cancelled") == 2
    assert not rig.mirror.view(0.0, rig.estimates.model).waiting


async def test_cancels_after_the_end_or_of_unknown_requests_are_harmless(
    engine: Engine, router: Router
) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    await exchange.send(DONE)
    await exchange.end()
    await router.ended(1)
    await router.cancel(1)
    await router.cancel(99)
    await router.submit(2)
    assert (await router.first(2)).HasField("admitted")


async def test_a_disconnected_router_leaves_no_request_at_the_engine(engine: Engine, rig: Rig) -> None:
    async with rig.router() as router:
        await router.submit(1)
        await router.submit(2)
        exchanges = [await engine.asked(), await streaming(engine, 2)]
    for exchange in exchanges:
        await exchange.closed.wait()
    await eventually(lambda: rig.replica.unfinished == 0)


async def test_closing_one_half_ends_the_session(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await router.call.done_writing()
    await exchange.closed.wait()
    assert await router.call.code() is grpc.StatusCode.OK


async def test_an_engines_refusal_is_quoted(engine: Engine, router: Router) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await exchange.begin(422, "application/json")
    await exchange.send(b'{"error": "no such adapter"}')
    await exchange.end()
    failed = (await router.ended(1)).failed
    assert router.kinds(1) == ["admitted", "failed"]
    assert (failed.failure, failed.status) == (wire.FAILURE_ENGINE_REFUSED, 422)
    assert failed.body == b'{"error": "no such adapter"}'


async def test_an_engine_that_crashes_before_the_first_byte_is_a_loss(engine: Engine, router: Router) -> None:
    await router.submit(1)
    (await engine.asked()).die()
    assert lost(await router.ended(1))
    assert router.kinds(1) == ["admitted", "failed"]


async def test_an_engine_that_crashes_within_an_answer_is_a_loss(engine: Engine, router: Router) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    await eventually(lambda: "output" in router.kinds(1))
    exchange.die()
    assert lost(await router.ended(1))
    assert router.data(1) == TOKEN


async def test_a_truncated_answer_is_a_loss(engine: Engine, router: Router) -> None:
    await router.submit(1)
    await (await streaming(engine)).end()
    assert lost(await router.ended(1))
    await router.submit(2)
    empty = await engine.asked(2)
    await empty.begin(content_type="application/json")
    await empty.end()
    assert lost(await router.ended(2))


async def test_an_answer_too_long_to_buffer_fails(engine: Engine, router: Router) -> None:
    await router.submit(1, {"prompt": "a"})
    exchange = await engine.asked()
    await exchange.begin(content_type="application/json")
    await exchange.send(b"x" * 5000)
    assert (await router.ended(1)).failed.failure == wire.FAILURE_INTERNAL
    await exchange.closed.wait()


async def test_a_killed_engine_fails_all_requests_and_recovers(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    await engine.asked()
    await router.submit(2)
    await streaming(engine, 2)
    await eventually(lambda: "output" in router.kinds(2))
    await engine.kill()
    assert lost(await router.ended(1)) and lost(await router.ended(2))
    await eventually(lambda: not rig.replica.state.engine_ready)
    await router.submit(3)
    assert (await router.ended(3)).rejected.reason == wire.REASON_ENGINE_DOWN
    assert rig.metric("verdicts_total", tier="chat", verdict="rejected", reason=Reason.ENGINE_DOWN.value) == 1
    await engine.start()
    await eventually(lambda: rig.replica.state.engine_ready)
    await router.submit(4)
    exchange = await streaming(engine, 3)
    await exchange.send(DONE)
    await exchange.end()
    assert (await router.ended(4)).HasField("finished")
    await eventually(lambda: router.frames[-1].snapshot.engine_ready)


async def test_an_engine_that_stops_listening_may_finish_its_streams(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    engine.stop_listening()
    await eventually(lambda: not rig.replica.state.engine_ready)
    await exchange.send(DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")


async def test_requests_of_an_unhealthy_engine_fail(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    engine.healthy = False
    assert lost(await router.ended(1))
    await exchange.closed.wait()
    await eventually(lambda: bool(router.frames) and not router.frames[-1].snapshot.engine_ready)


async def test_a_request_over_the_bound_of_open_requests_is_rejected(rig: Rig, router: Router) -> None:
    for id in range(3):
        await router.submit(id, backup=True)
    assert [(await router.first(id)).WhichOneof("kind") for id in range(3)] == [
        "best_effort",
        "best_effort",
        "rejected",
    ]
    assert router.events[2][0].rejected.reason == wire.REASON_QUEUE_FULL
    for id in range(3, 10):
        await router.submit(id)
    kinds = [(await router.first(id)).WhichOneof("kind") for id in range(3, 10)]
    assert kinds == ["admitted"] * 6 + ["rejected"]
    await router.cancel(0)
    await router.cancel(1)
    await eventually(lambda: rig.replica.unfinished == 6)
    await router.submit(10, backup=True)
    assert (await router.first(10)).HasField("best_effort")


async def test_a_router_that_does_not_read_loses_only_its_own_session(
    engine: Engine, rig: Rig, router: Router
) -> None:
    slow = rig.router()  # never reads
    exchanges = []
    for id in (1, 2, 3):
        await slow.submit(id)
        exchanges.append(await engine.asked(id))
        await exchanges[-1].begin()
    with contextlib.suppress(ConnectionError):
        for _ in range(200):
            for exchange in exchanges:
                await exchange.send(b"data: " + b"x" * 20_000 + b"\n\n")
    for exchange in exchanges:
        await exchange.closed.wait()
    await eventually(lambda: rig.metric("routers_behind_total") == 1)
    await eventually(lambda: rig.replica.unfinished == 0)
    await router.submit(1)
    assert (await router.first(1)).HasField("admitted")
    await slow.__aexit__(None, None, None)


async def test_an_answer_that_fills_a_session_ends_alone(engine: Engine, rig: Rig, router: Router) -> None:
    slow = rig.router()  # never reads
    await slow.submit(1)
    flood = await engine.asked()
    await slow.submit(2)
    other = await engine.asked(2)
    await flood.begin()
    await other.begin()
    with contextlib.suppress(ConnectionError):
        for _ in range(200):
            await flood.send(b"data: " + b"x" * 60_000 + b"\n\n")
    await flood.closed.wait()
    await eventually(lambda: rig.replica.unfinished == 1)
    assert rig.metric("routers_behind_total") == 0
    await other.send(b"data: {}\n\n")
    await slow.cancel(2)
    await eventually(lambda: rig.replica.unfinished == 0)
    await slow.__aexit__(None, None, None)


async def test_a_drain_refuses_new_requests_and_awaits_earlier_ones(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    draining = asyncio.ensure_future(router.stub.Drain(wire.DrainRequest()))
    await eventually(lambda: rig.replica.state.draining)
    await router.submit(2)
    assert (await router.ended(2)).rejected.reason == wire.REASON_DRAINING
    await eventually(lambda: router.frames[-1].snapshot.draining)
    assert not draining.done()
    await exchange.send(DONE)
    await exchange.end()
    assert (await draining).unfinished == 0
    assert (await router.ended(1)).HasField("finished")


async def test_a_drain_that_times_out_reports_its_unfinished_requests(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    await streaming(engine)
    await eventually(lambda: "output" in router.kinds(1))
    assert (await router.stub.Drain(wire.DrainRequest(deadline_s=0.01))).unfinished == 1


def handed_back(event: wire.Event) -> bool:
    return event.failed.failure == wire.FAILURE_RETURNED and event.failed.status == 503


async def test_a_drain_returns_requests_not_begun_and_finishes_the_rest(
    engine: Engine, rig: Rig, router: Router
) -> None:
    for id in (1, 2, 3):
        await router.submit(id, {"prompt": [1] * id, "stream": id != 3})
        await engine.asked(id)
    begun, queued = await streaming(engine), await engine.asked(2)
    whole = await engine.asked(3)  # whether that has begun cannot be known
    await eventually(lambda: "output" in router.kinds(1))
    draining = asyncio.ensure_future(router.stub.Drain(wire.DrainRequest()))
    assert handed_back(await router.ended(2))
    await queued.closed.wait()
    assert (rig.metric("returned_total"), rig.replica.unfinished) == (1, 2)
    await begun.send(DONE)
    await begun.end()
    assert (await router.ended(1)).HasField("finished")
    for id in (4, 5):  # two round trips, after which an ended drain would have been reported
        await router.submit(id)
        assert (await router.ended(id)).rejected.reason == wire.REASON_DRAINING
    assert not draining.done()
    await whole.begin(content_type="application/json")
    await whole.send(b'{"usage": {"prompt_tokens": 3, "completion_tokens": 1}}')
    await whole.end()
    assert (await router.ended(3)).HasField("finished")
    assert (await draining).unfinished == 0
    assert rig.metric("ends_total", tier="chat", end="returned") == 1


async def test_a_drain_follows_the_engines_reports_if_there_are_any(
    engine: Engine, rig: Rig, router: Router
) -> None:
    for id in (1, 2, 3):
        await router.submit(id, {"prompt": [1] * id})
        await engine.asked(id)
    keys = [(await engine.asked(id)).key for id in (1, 2, 3)]
    rows = StepReport(
        sequence=1,
        running=1,
        waiting=1,
        request_ids=keys[:2],
        computed_tokens=[1, 0],
        generated_tokens=[0, 0],
        best_effort=[False, False],
    )
    rig.reports.receive([rows])
    assert (await router.stub.Drain(wire.DrainRequest(deadline_s=0.01))).unfinished == 1
    assert handed_back(await router.ended(2)) and handed_back(await router.ended(3))
    assert router.kinds(1) == ["admitted"]


async def test_a_drained_replica_can_resume(engine: Engine, rig: Rig, router: Router) -> None:
    await router.submit(1)
    exchange = await streaming(engine)
    await eventually(lambda: "output" in router.kinds(1))
    draining = asyncio.ensure_future(router.stub.Drain(wire.DrainRequest()))
    await eventually(lambda: rig.replica.state.draining)
    await router.stub.Resume(wire.ResumeRequest())
    assert (await draining).unfinished == 1
    await eventually(lambda: not router.frames[-1].snapshot.draining)
    await router.submit(2)
    assert (await router.first(2)).HasField("admitted")
    await exchange.send(DONE)
    await exchange.end()
    await router.ended(1)
    again = asyncio.ensure_future(router.stub.Drain(wire.DrainRequest()))
    assert handed_back(await router.ended(2))
    assert (await again).unfinished == 0
    assert rig.metric("drains_total") == 2


async def test_a_replica_that_stops_does_not_resume(rig: Rig, router: Router) -> None:
    rig.replica.state.stopping = True
    await rig.replica.drain(0.0)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await router.stub.Resume(wire.ResumeRequest())
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
    assert rig.replica.state.draining


async def test_a_replica_that_closes_returns_requests_not_begun(
    engine: Engine, rig: Rig, router: Router
) -> None:
    await router.submit(1)
    await engine.asked()
    await rig.replica.close()
    assert handed_back(await router.ended(1))


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.7", False),
        ("10.0.0.7", False),
        ("fd00::7", False),
        ("unknown", False),
        ("", False),
    ],
)
async def test_only_its_own_machine_may_drain_a_replica(rig: Rig, peer: str, local: bool) -> None:
    calls: tuple[Callable[[], Awaitable[object]], ...] = (
        lambda: rig.service.drain(wire.DrainRequest(deadline_s=0.01), peer),
        lambda: rig.service.resume(wire.ResumeRequest(), peer),
    )
    for call in calls:
        if local:
            await call()
            continue
        with pytest.raises(RpcError) as refused:
            await call()
        assert refused.value.status is Status.PERMISSION_DENIED
    assert not rig.replica.state.draining
    assert (rig.metric("drains_total") == 1) is local


async def test_health_follows_the_engine_and_the_drain(engine: Engine, rig: Rig, router: Router) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    serving = health_pb2.HealthCheckResponse.SERVING
    stopped = health_pb2.HealthCheckResponse.NOT_SERVING
    async with grpc.aio.insecure_channel(rig.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(service="penstock.v1.Replica")
        )

        async def becomes(status: int) -> None:
            async with asyncio.timeout(20):
                while (await watch.read()).status != status:
                    pass

        await becomes(serving)
        engine.healthy = False
        await becomes(stopped)
        engine.healthy = True
        await becomes(serving)
        await router.stub.Drain(wire.DrainRequest(deadline_s=0.01))
        await becomes(stopped)
        watch.cancel()
