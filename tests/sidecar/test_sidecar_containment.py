"""An invalid request or report, or an internal error, affects only its own request."""

from collections.abc import Sequence
from typing import Any

import pytest
from patience import eventually
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import Drafting, StepReport

from tests.sidecar.conftest import DONE, TOKEN, Engine, Exchange, Rig, Router, submit

DEEP = [b"[" * levels + b"]" * levels for levels in (100, 254, 300, 1023, 5000, 100_000)]
HOSTILE = [
    *[b'{"prompt": "a", "tools": ' + deep + b"}" for deep in DEEP],
    *[b'{"prompt": "a", "vllm_xargs": {"a": ' + deep + b"}}" for deep in DEEP],
    *[b'{"prompt": ' + deep + b"}" for deep in DEEP],
    b'{"prompt": "a", "n": 1000000}',
    b'{"prompt": [' + b'"a",' * 99 + b'"a"]}',
    b'{"prompt": "a", "other": [' + b"[]," * (1 << 20) + b"1]}",
    b'{"prompt": "\xff\xfe"}',
    b'{"prompt": "a", "max_tokens": -1e999}',
    b"\x00" * 100,
    b"",
]


async def streaming(engine: Engine, router: Router, id: int) -> Exchange:
    """Another client's stream, with one token sent."""
    number = len(engine.exchanges) + 1
    await router.submit(id)
    exchange = await engine.asked(number)
    await exchange.begin()
    await exchange.send(TOKEN)
    await eventually(lambda: "output" in router.kinds(id))
    return exchange


async def ends_whole(router: Router, id: int, exchange: Exchange) -> None:
    await exchange.send(TOKEN + DONE)
    await exchange.end()
    await router.ended(id)
    assert router.data(id) == TOKEN + TOKEN + DONE


async def test_invalid_bodies_are_answered_400_beside_a_stream(
    engine: Engine, rig: Rig, router: Router
) -> None:
    exchange = await streaming(engine, router, 1)
    for id, body in enumerate(HOSTILE, 2):
        await router.submit(id, body)
    for id in range(2, len(HOSTILE) + 2):
        failed = (await router.ended(id)).failed
        assert (failed.failure, failed.status) == (wire.FAILURE_BAD_REQUEST, 400), HOSTILE[id - 2][:60]
    await ends_whole(router, 1, exchange)
    assert len(engine.exchanges) == 1
    assert rig.metric("faults_total", where="submit") == 0


async def test_a_fault_while_a_request_is_read_ends_that_request(
    engine: Engine, rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = await streaming(engine, router, 1)
    estimate = rig.estimates.prompt_tokens

    def breaks_at_fours(body: Any, *_: Any) -> int:
        return 1 // 0 if body.text_bytes == 4 else estimate(body)

    monkeypatch.setattr(rig.estimates, "prompt_tokens", breaks_at_fours)
    await router.send(wire.RouterFrame(submits=[submit(2, {"prompt": "four"}), submit(3)]))
    assert (await router.ended(2)).failed.failure == wire.FAILURE_INTERNAL
    assert (await router.first(3)).HasField("admitted")
    await ends_whole(router, 1, exchange)
    assert rig.metric("faults_total", where="submit") == 1


async def test_of_requests_decided_together_only_the_one_that_breaks_planning_fails(
    rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    admit = rig.policy.admit

    def breaks(view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        if any(job.request.prompt_tokens == 4 for job in new):
            raise ArithmeticError
        return admit(view, new)

    monkeypatch.setattr(rig.policy, "admit", breaks)
    submits = [submit(1), submit(2, {"prompt": [1] * 4}), submit(3)]
    await router.send(wire.RouterFrame(submits=submits))
    assert (await router.ended(2)).failed.failure == wire.FAILURE_INTERNAL
    assert (await router.first(1)).HasField("admitted")
    assert (await router.first(3)).HasField("admitted")
    assert rig.metric("faults_total", where="planning") == 1


async def test_a_policy_that_omits_a_verdict_fails_only_the_requests_of_that_decision(
    rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.policy, "admit", lambda view, new: [])
    await router.submit(1)
    assert (await router.ended(1)).failed.failure == wire.FAILURE_INTERNAL
    monkeypatch.undo()
    await router.submit(2)
    assert (await router.first(2)).HasField("admitted")


async def test_a_request_whose_forwarding_fails_ends(
    engine: Engine, rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.client, "answer", lambda *request: 1 // 0)
    await router.submit(1)
    assert (await router.ended(1)).failed.failure == wire.FAILURE_INTERNAL
    assert router.kinds(1) == ["admitted", "failed"]
    assert rig.replica.unfinished == 0
    assert rig.metric("faults_total", where="forwarding") == 1


@pytest.mark.parametrize("target", [float("nan"), float("inf"), -1.0])
async def test_a_submit_with_impossible_times_is_refused(rig: Rig, router: Router, target: float) -> None:
    await router.send(wire.RouterFrame(submits=[submit(1, ttft_s=target), submit(2, spent_s=target)]))
    for id in (1, 2):
        assert (await router.ended(id)).failed.failure == wire.FAILURE_BAD_REQUEST
    assert rig.policy.asked == []


async def test_a_session_continues_if_no_snapshot_can_be_built(
    engine: Engine, rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = await streaming(engine, router, 1)
    monkeypatch.setattr(rig.mirror, "snapshot", lambda now_s, model: 1 // 0)
    await ends_whole(router, 1, exchange)
    await eventually(lambda: rig.metric("faults_total", where="snapshot") > 0)


async def test_an_error_at_the_end_of_a_request_leaves_the_replica_empty(
    engine: Engine, rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = await streaming(engine, router, 1)
    monkeypatch.setattr(rig.estimates, "observe_answer", lambda *answer: 1 // 0)
    await ends_whole(router, 1, exchange)
    assert rig.metric("faults_total", where="end") == 1
    assert (await router.stub.Drain(wire.DrainRequest(deadline_s=60))).unfinished == 0


async def test_a_long_body_is_read_beside_the_streams(engine: Engine, rig: Rig, router: Router) -> None:
    long = {"prompt": "word " * 20_000, "stream": True}
    await router.send(wire.RouterFrame(submits=[submit(1, long), submit(2)]))
    assert (await router.first(2)).HasField("admitted")
    assert (await router.first(1)).HasField("admitted")
    await eventually(lambda: len(engine.exchanges) == 2)
    assert {len(exchange.body["prompt"]) for exchange in engine.exchanges} == {3, 100_000}


async def test_a_long_body_that_is_cancelled_while_it_is_read_does_not_reach_the_engine(
    engine: Engine, rig: Rig, router: Router
) -> None:
    frame = wire.RouterFrame(submits=[submit(1, {"prompt": "word " * 20_000})], cancels=[1])
    await router.send(frame)
    await eventually(lambda: rig.metric("ends_total", tier="chat", end="cancelled") == 1)
    await router.submit(2)
    await router.first(2)
    assert [len(requested) for requested in rig.policy.asked] == [1]
    assert router.events.get(1) is None


UNSOUND = [
    StepReport(sequence=1, next_duration_s=float("nan")),
    StepReport(sequence=1, next_duration_s=float("inf")),
    StepReport(sequence=1, next_duration_s=-1),
    StepReport(sequence=1, kv_blocks_total=10),
    StepReport(sequence=1, kv_blocks_total=10, kv_blocks_free=11, block_tokens=16),
    StepReport(sequence=1, prefill_work=float("nan")),
    StepReport(sequence=1, drafting=Drafting(max_tokens=2, acceptance=float("nan"))),
]


@pytest.mark.parametrize("report", UNSOUND, ids=str)
async def test_an_invalid_report_changes_nothing(rig: Rig, router: Router, report: StepReport) -> None:
    rig.reports.receive([report])
    assert rig.metric("telemetry_malformed_total") == 1
    assert rig.metric("telemetry_live") == 0
    await router.submit(1)
    assert (await router.first(1)).HasField("admitted")


async def test_a_fault_in_reading_a_report_does_not_end_sessions(
    rig: Rig, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rig.mirror, "apply", lambda report, now_s: 1 // 0)
    rig.reports.receive([StepReport(sequence=1)])
    assert rig.metric("faults_total", where="telemetry") == 1
    await router.submit(1)
    assert (await router.first(1)).HasField("admitted")
