"""Details of numbers and orders that no other test asserts."""

from dataclasses import replace
from time import monotonic

import pytest
from patience import eventually
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.policies import build
from penstock_core.timing.time_model import BatchWork
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.metrics import EngineLoad
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import EngineCount, HoldingMirror
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.release import gate as gate_module
from penstock_sidecar.release.gate import ReleaseGate
from penstock_sidecar.requests.estimates import Estimates
from prometheus_client import CollectorRegistry

from tests.sidecar.conftest import MODEL, Engine, Rig, Router, submit


def job(key: str, prompt_tokens: int = 100) -> Job:
    return new_job(Request(key, "chat", 0.0, prompt_tokens, 500), 50, False)


async def test_a_cancel_before_the_verdict_takes_effect(rig: Rig, router: Router) -> None:
    await router.send(wire.RouterFrame(submits=[submit(1), submit(2)], cancels=[1]))
    await router.first(2)
    assert [len(requested) for requested in rig.policy.asked] == [1]
    assert rig.metric("ends_total", tier="chat", end="cancelled") == 1
    assert router.events.get(1) is None


async def test_the_last_report_of_an_engine_that_is_down_is_dropped(
    engine: Engine, rig: Rig, router: Router
) -> None:
    held = StepReport(
        sequence=1,
        running=1,
        request_ids=["foreign"],
        computed_tokens=[10],
        generated_tokens=[2],
        best_effort=[True],
        next_duration_s=1e6,
    )
    rig.reports.receive([held])
    assert rig.mirror.view(0.0, MODEL).running
    engine.healthy = False
    await eventually(lambda: not rig.replica.state.engine_ready)
    view = rig.mirror.view(0.0, MODEL)
    assert (view.running, view.busy_until_s) == ((), 0.0)


def test_an_iteration_in_progress_keeps_the_engine_busy() -> None:
    mirror = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), lambda _: 400)
    mirror.apply(StepReport(sequence=1, next_duration_s=0.5), 10.0)
    assert mirror.view(10.1, MODEL).busy_until_s == 10.5
    assert mirror.view(10.7, MODEL).busy_until_s == 10.7
    rough = replace(MODEL, slow_chance=0.02, slow_excess=3.0)
    assert mirror.view(10.1, rough).busy_until_s == 10.5
    assert mirror.view(10.7, rough).busy_until_s == 12.0


def test_the_token_after_a_full_block_takes_another_block() -> None:
    mirror = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), lambda _: 400)
    mirror.accept(job("a", 16), 0.0)
    mirror.passed("a", 1, 0.1)  # its prompt fills a block
    assert mirror.view(0.1, MODEL).kv.free_blocks == 998


@pytest.mark.parametrize(("max_tokens", "longest"), [(None, 4096 - 3), (5, 5), (100_000, 4096 - 3)])
async def test_an_answer_ends_at_the_clients_or_the_contexts_limit(
    rig: Rig, router: Router, max_tokens: int | None, longest: int
) -> None:
    body = {"prompt": [1, 2, 3], **({} if max_tokens is None else {"max_tokens": max_tokens})}
    await router.submit(1, body)
    await router.first(1)
    ((requested,),) = rig.policy.asked
    assert requested.request.max_output_tokens == longest


def test_requests_that_arrived_or_ended_during_a_probe_are_not_foreign() -> None:
    for before, after in ((EngineCount(3, 30), EngineCount(1, 10)), (EngineCount(1, 10), EngineCount(3, 30))):
        mirror = HoldingMirror(KvCache(100, 100, 16), Limits(running=8), lambda _: 400)
        mirror.engine_load(EngineLoad(running=3, waiting=1, kv_used=0.4), before, after)
        view = mirror.held_view(0.0, MODEL)
        assert mirror.slots.most - view.limits.running == 1
        assert view.kv.total_blocks == 90


def test_a_job_in_the_engine_takes_the_blocks_of_its_prompt_and_its_answer() -> None:
    mirror = HoldingMirror(KvCache(100, 100, 16), Limits(running=8), lambda _: 400)
    mirror.accept(new_job(Request("a", "chat", 0.0, 100, 500), 400, False), 0.0)
    mirror.released("a", 0.0)
    mirror.passed("a", 13, 1.0)
    assert mirror.count == EngineCount(1, 8)


def test_each_kind_of_iteration_is_predicted_from_measurements_of_its_kind() -> None:
    estimates = Estimates(MODEL)
    decodes, both = BatchWork(30, 30_000), BatchWork(400, 30_000, 70_000.0)
    for _ in range(200):
        decode_error = estimates.observe_step(decodes, 0.7 * MODEL.seconds(decodes))
        mixed_error = estimates.observe_step(both, 1.4 * MODEL.seconds(both))
    assert max(decode_error, mixed_error) < 0.05
    planned = estimates.admission_model(0.0)
    assert planned.seconds(decodes) < 0.8 * MODEL.seconds(decodes)
    assert planned.seconds(both) > 1.4 * MODEL.seconds(both)


def gate_before(bounds: Bounds) -> tuple[ReleaseGate, HoldingMirror]:
    """Before an engine with one slot."""
    estimates = Estimates(MODEL)
    mirror = HoldingMirror(KvCache(1000, 1000, 16), Limits(running=1), estimates.longer_output_tokens)
    gate = ReleaseGate(build("fcfs"), mirror, estimates, bounds=bounds, metrics=Metrics(CollectorRegistry()))
    return gate, mirror


async def test_a_slot_that_becomes_free_is_used_immediately() -> None:
    gate, mirror = gate_before(replace(Bounds(), longest_release_interval_s=1e6))
    for key in "ab":
        mirror.accept(job(key), 0.0)
        gate.hold((key,))
    await eventually(lambda: not gate.holds("a") and gate._scheduled_at_s > monotonic() + 1e5)
    assert gate.holds("b")
    mirror.forget("a")
    gate.ended("a", engine_full=False)
    await eventually(lambda: not gate.holds("b"))


async def test_a_slow_policy_is_called_only_within_its_share_of_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, mirror = gate_before(replace(Bounds(), release_share=0.2))
    now_s = [0.0]
    give_turns = gate._release_held

    def slow(began_s: float) -> None:  # a decision of 100 s
        give_turns(began_s)
        now_s[0] += 100.0

    monkeypatch.setattr(gate_module, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(gate, "_release_held", slow)
    for key in "ab":
        mirror.accept(job(key), 0.0)
        gate.hold((key,))
    await eventually(lambda: not gate.holds("a"))
    assert gate._next_s == 100 / 0.2
    assert gate.holds("b")
    gate.ended("b", engine_full=False)
