"""An engine that accepts a request and makes no progress, although its health check answers."""

from time import monotonic
from typing import Any

import pytest
from patience import eventually
from penstock_core.forecast.overdue import LEAST_S
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport

from tests.sidecar.conftest import DONE, TOKEN, Engine, Exchange, Rig, Router

BODY = {"model": "m", "prompt": [1, 2, 3], "max_tokens": 1000}
WITHIN_S, PAST_S = LEAST_S - 5, 3 * 60.0


@pytest.fixture
def later(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the replica's tick this many seconds from now."""

    def tick(seconds: float) -> None:
        monkeypatch.setattr(rig.replica, "_now_s", lambda: monotonic() + seconds)
        rig.replica.tick()
        monkeypatch.undo()

    return tick


def lost(event: wire.Event) -> bool:
    return event.failed.failure == wire.FAILURE_ENGINE_LOST and event.failed.status == 502


async def streaming(engine: Engine, router: Router, id: int) -> Exchange:
    exchange = await engine.asked(id)
    await exchange.begin()
    await exchange.send(TOKEN)
    await eventually(lambda: "output" in router.kinds(id))
    return exchange


async def test_a_stalled_stream_is_lost_and_cancelled(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1)
    exchange = await streaming(engine, router, 1)
    later(WITHIN_S)
    assert rig.replica.unfinished == 1
    later(PAST_S)
    assert lost(await router.ended(1))
    await exchange.closed.wait()
    assert rig.metric("stalled_total", tier="chat", at="running") == 1
    assert rig.replica.unfinished == 0


async def test_a_request_that_an_engine_accepted_and_never_started_is_lost(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1)
    exchange = await engine.asked()
    await exchange.begin()
    later(WITHIN_S)
    assert rig.replica.unfinished == 1
    later(PAST_S)
    assert lost(await router.ended(1))
    await exchange.closed.wait()
    assert rig.metric("stalled_total", tier="chat", at="queued") == 1


async def test_a_whole_answer_may_take_the_time_of_the_longest_one(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1, BODY)
    exchange = await engine.asked()
    later(1000 * 0.05)  # at the pace of its verdict
    assert rig.replica.unfinished == 1
    later(1000 * 0.05 + PAST_S)
    assert lost(await router.ended(1))
    await exchange.closed.wait()
    assert rig.metric("stalled_total", tier="chat", at="unseen") == 1


async def test_a_whole_answer_is_lost_sooner_if_the_engine_reports(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1, BODY | {"max_tokens": 100_000})
    exchange = await engine.asked()
    row: dict[str, Any] = {"request_ids": [exchange.key], "computed_tokens": [3], "generated_tokens": [1]}
    rig.reports.receive([StepReport(sequence=1, running=1, best_effort=[False], next_duration_s=1e4, **row)])
    later(WITHIN_S)
    assert rig.replica.unfinished == 1
    later(PAST_S)
    assert lost(await router.ended(1))


async def test_waiting_behind_progressing_requests_is_not_a_fault(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1)
    going = await streaming(engine, router, 1)
    await router.submit(2)
    waiting = await engine.asked(2)
    ahead_s = 30.0
    rig.mirror.passed(going.key, 1, monotonic() + ahead_s)  # the other's next token
    later(ahead_s + WITHIN_S)
    assert rig.replica.unfinished == 2
    assert not waiting.closed.is_set()


async def test_an_engine_that_continues_loses_no_request(
    engine: Engine, rig: Rig, router: Router, later: Any
) -> None:
    await router.submit(1)
    exchange = await streaming(engine, router, 1)
    later(0.0)
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    assert (await router.ended(1)).HasField("finished")
    later(PAST_S)
    assert rig.metric("stalled_total", tier="chat", at="running") == 0
