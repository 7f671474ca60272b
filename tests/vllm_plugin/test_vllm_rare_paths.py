"""Paths that few requests take: pauses, sessions, KV from a connector, adapters, engines short of memory."""

from dataclasses import replace
from typing import Any

import pytest
from penstock_core.domain.policy import Step
from virtual.engine import Engine, Kind
from virtual.life import TIERS, everybody, watched

SMALL = Kind(policy="slos-serve", blocks=60, batch_tokens=128, running=8)
CHAT = TIERS[0]


def decoding(
    kind: Kind, count: int, output_tokens: int = 40, *, always: bool = False, **more: Any
) -> tuple[Engine, Any]:
    """Return an engine with this many decodes, and its policy. always: it is called for every step."""
    engine, policy = watched(kind, always=always)
    for at in range(count):
        engine.add(f"r{at}", 20, output_tokens, fields=CHAT | {"penstock_id": f"p{at}"}, **more)
    while len(engine.scheduler.running) < count or any(
        not request.num_output_tokens for request in engine.scheduler.running
    ):
        engine.step()
    return engine, policy


def pause(engine: Engine, state: str) -> None:
    from vllm.v1.core.sched.interface import PauseState

    engine.scheduler.set_pause_state(PauseState[state])


@pytest.mark.parametrize("state", ["PAUSED_NEW", "PAUSED_ALL"])
def test_a_paused_engines_steps_are_vllms_own(state: str) -> None:
    """A policy would give up memory for requests that are not started."""
    engine, policy = decoding(SMALL, 3)
    pause(engine, state)
    engine.add("new", 20, 5, fields=CHAT)
    requested = policy.asked
    for _ in range(5):
        output = engine.step()
        assert set(output.num_scheduled_tokens) == ({"r0", "r1", "r2"} if state == "PAUSED_NEW" else set())
    assert policy.asked == requested
    pause(engine, "UNPAUSED")
    engine.drain()
    assert engine.finished == set(engine.asked) and policy.asked > requested


@pytest.mark.parametrize("ahead", [False, True])
def test_a_step_with_another_outcome_ends_a_repeated_plan(ahead: bool) -> None:
    engine, policy = decoding(replace(SMALL, ahead=ahead), 3)
    for _ in range(5):
        engine.step()
    assert engine.scheduler._repeated is not None
    requested = policy.asked
    pause(engine, "PAUSED_ALL")
    for _ in range(4):
        engine.step()
        assert engine.scheduler._repeated is None
    assert not engine.scheduler._pipeline.steps, "nothing is being computed"
    pause(engine, "UNPAUSED")
    engine.step()
    assert policy.asked > requested
    engine.drain()
    assert engine.finished == set(engine.asked)


def test_a_session_that_waits_for_input_holds_its_slot() -> None:
    engine, policy = watched(replace(SMALL, running=3))
    session = engine.add("session", 20, 3, resumable=True)
    while engine.scheduler.num_waiting_for_streaming_input == 0:
        engine.step()
    for at in range(4):
        engine.add(f"r{at}", 20, 30, fields=CHAT)
    engine.step()
    assert policy.view is not None and policy.view.limits.running == 2
    assert len(engine.scheduler.running) == 2
    engine.add("session", 10, 3, resumable=True)  # its next piece
    while session.num_output_tokens < 3:
        engine.step()
    engine.abort(["session"])
    engine.drain()
    assert engine.finished >= {f"r{at}" for at in range(4)}
    assert policy.view is not None and policy.view.limits.running == 3


@pytest.mark.parametrize("ahead", [False, True])
def test_vllm_itself_waits_for_kv_that_a_connector_loads(ahead: bool) -> None:
    engine, policy = decoding(replace(SMALL, loads_kv=True, ahead=ahead), 2, 80)
    engine.add("far", 50, 5, fields=CHAT | {"penstock_id": "far"}, loads=True)
    for _ in range(6):
        engine.step()
    assert policy.view is not None and "far" not in {job.request.id for job in policy.view.waiting}
    queues = [*engine.scheduler.waiting, *engine.scheduler.kv_holding_waiting]
    assert [request.request_id for request in queues] == ["far"]
    engine.loaded = {"far"}
    engine.drain()
    assert engine.finished == set(engine.asked)
    assert engine.free_blocks == SMALL.blocks


def test_a_request_that_loses_blocks_while_a_plan_is_executed_waits_for_blocks() -> None:
    """A policy may plan for more blocks than there are: vLLM takes them from the last in its list."""
    engine, policy = decoding(replace(SMALL, blocks=8), 3, 60)
    lost: set[str] = set()
    while not lost:
        policy.answer = everybody
        lost = set(engine.step().preempted_req_ids)
        assert engine.scheduler.faults.counted == {}
    assert lost == {request.request_id for request in engine.scheduler.waiting}
    assert lost == {held.request.request_id for held in engine.scheduler.ledger.waiting}
    policy.answer = None
    engine.drain()
    assert engine.finished == set(engine.asked)


def test_vllms_own_bounds_are_restored_after_a_plan() -> None:
    engine, policy = watched(replace(SMALL, watermark=0.2))
    manager = engine.scheduler.kv_cache_manager
    bounds = manager.watermark_blocks, engine.scheduler.scheduler_reserve_full_isl
    assert bounds == (12, True)
    engine.add("r0", 100, 20, fields=CHAT)
    engine.step()
    assert policy.asked == 1
    assert (manager.watermark_blocks, engine.scheduler.scheduler_reserve_full_isl) == bounds


@pytest.mark.parametrize(("late_s", "counted_s"), [(0.0, 0.0), (0.5, 0.5), (-3.0, 0.0), (1e6, 60.0)])
def test_the_transit_time_of_a_request_counts_against_its_budget(late_s: float, counted_s: float) -> None:
    """Unless its clock is wrong."""
    engine = Engine(SMALL)
    engine.now_s = 100.0
    engine.scheduler.wall = lambda: 100.0 + late_s
    engine.add("r0", 20, 5, fields={"penstock_ttft_s": 1.0, "penstock_spent_s": 0.25})
    job = engine.scheduler.ledger.by_id["r0"].job
    assert job.request.arrival_s == pytest.approx(100.0 - counted_s - 0.25)
    assert job.due_s == pytest.approx(101.0 - counted_s - 0.25)


@pytest.mark.parametrize("session", [False, True])
def test_adapters_in_use_stay_within_the_bound_with_one_that_is_idle(session: bool) -> None:
    """vLLM counts those that it computes: next step one more than fit would be, and vLLM would end."""
    engine, policy = decoding(replace(SMALL, loras=2), 1, lora=1)
    for lora in (2, 3):
        more: dict[str, Any] = {"resumable": True} if session and lora == 3 else {}
        engine.add(f"n{lora}", 20, 20, fields=CHAT | {"penstock_id": f"n{lora}"}, lora=lora, **more)
    policy.answer = lambda view: Step({"n2": 20} | ({} if session else {"n3": 20}))
    engine.step()
    policy.answer = None
    assert engine.scheduler.faults.counted == {}
    assert [request.lora_request.lora_int_id for request in engine.scheduler.running] == [1, 2]
    for _ in range(5):
        engine.step()
    engine.abort(["n3"] if session else [])
    engine.drain()
    assert engine.finished | engine.stopped == set(engine.asked)


def test_a_preempted_request_is_not_planned_before_its_last_tokens_arrive() -> None:
    engine, policy = decoding(replace(SMALL, ahead=True), 2, always=True)
    for _ in range(2):
        engine.begin()  # several steps under way, as in a pipeline of workers
    policy.answer = lambda view: Step({"p0": 1}, preempt=("p1",))
    assert engine.begin().preempted_req_ids == {"r1"}
    policy.answer = lambda view: Step({"p0": 1})
    engine.begin()
    assert "p1" not in {job.request.id for job in policy.view.waiting}
    policy.answer = None
    while engine.under_way:
        engine.end()
    engine.step()
    assert "p1" in {job.request.id for job in (*policy.view.waiting, *policy.view.running)}
    engine.drain()
    assert engine.finished == set(engine.asked)
