"""Calls of the policy: warm-up before the engine is ready, time limit, and the log of its failures."""

import logging
from typing import Any

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.slo import Targets
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.speculation import Speculation
from penstock_vllm.containment import contained
from penstock_vllm.faults import Fault, PolicyFaultLog
from penstock_vllm.policy_calls import MOST_STEPS_OFF, PolicyCalls
from penstock_vllm.warm_up import warm_up

MODEL = time_model("llama-3-8b-a100")
VIEW = ReplicaView(0.0, 0.0, (), (), KvCache(10, 10, 16), Limits(), MODEL)


class Scripted:
    """A policy that counts calls and records their views. It fails if the test requires it."""

    def __init__(self) -> None:
        self.seen: list[tuple[ReplicaView, int]] = []
        self.fails: Exception | None = None

    def start(self) -> int:
        return 0

    def admit(self, view: ReplicaView, new: Any) -> Any:
        raise AssertionError

    def step(self, view: ReplicaView, memory: int) -> tuple[Step, int]:
        self.seen.append((view, memory))
        if self.fails is not None:
            raise self.fails
        return Step(), memory + 1


class Clock:
    """A clock that advances by `step_s` at each reading."""

    def __init__(self) -> None:
        self.now_s, self.step_s = 0.0, 0.0

    def __call__(self) -> float:
        self.now_s += self.step_s
        return self.now_s


def test_a_policy_is_warmed_up_with_new_requests_chunks_decodes_and_both() -> None:
    policy, speculation = Scripted(), Speculation(2, 0.5)
    warm_up(policy, Limits(512, 6), MODEL, speculation)
    views = [view for view, _ in policy.seen]
    assert [memory for _, memory in policy.seen] == [0, 1, 2, 3]
    assert [(len(view.running), len(view.waiting)) for view in views] == [(0, 6), (6, 0), (6, 0), (6, 6)]
    assert [view.now_s for view in views] == [view.busy_until_s for view in views] == [0.0, 0.1, 0.2, 0.3]
    assert {(job.computed_tokens, job.decoding) for job in views[1].running} == {(50, False)}
    assert {(job.computed_tokens, job.decoding) for job in views[2].running} == {(100, True)}
    both = (*views[3].running, *views[3].waiting)
    assert len({job.request.id for job in both}) == 12
    assert {job.best_effort for job in both} == {True, False}
    assert {job.request.targets for job in both} == {Targets(1.0, 0.05), Targets(e2e_s=10.0)}
    assert {
        (job.request.prompt_tokens, job.request.max_output_tokens, job.output_tokens) for job in both
    } == {(100, 40, 20)}
    for view in views:
        assert (view.kv, view.limits) == (KvCache(1024, 512, 16), Limits(512, 6))
        assert (view.model, view.speculation) == (MODEL, speculation)
    few = Scripted()
    warm_up(few, Limits(512, 100), MODEL, None)
    assert len(few.seen[0][0].waiting) == 8
    assert [job.best_effort for job in few.seen[0][0].waiting] == [True, False, False, False] * 2
    kinds = [(job.request.tier, job.request.targets.e2e_s) for job in few.seen[0][0].waiting]
    assert kinds == [("batch", 10.0), ("chat", None)] * 4
    assert {job.request.arrival_s for job in both} == {0.0}
    assert {job.anchor for job in views[2].running} == {(0.1, 1)}


def test_a_policy_whose_warm_up_fails_starts_no_engine() -> None:
    policy = Scripted()
    policy.fails = ValueError("broken")
    with pytest.raises(ValueError, match="broken"):
        warm_up(policy, Limits(), MODEL, None)


def planning(clock: Clock, policy: Scripted, planning_s: float = 0.5) -> tuple[PolicyCalls, PolicyFaultLog]:
    faults = PolicyFaultLog()
    return PolicyCalls(policy, planning_s, clock, faults), faults


def test_a_policys_state_is_that_of_its_last_successful_step() -> None:
    policy = Scripted()
    plans, faults = planning(Clock(), policy)
    assert plans.plan(VIEW, {}) is not None
    policy.fails = KeyError("x")
    assert plans.plan(VIEW, {}) is None
    policy.fails = None
    assert plans.plan(VIEW, {}) is not None
    assert [memory for _, memory in policy.seen] == [0, 1, 1]
    assert faults.counted == {Fault.RAISED: 1}


@pytest.mark.parametrize(
    ("took_s", "steps_off"), [(0.5, 0), (5.5, 0), (5.75, 10), (6.0, 11), (9e9, MOST_STEPS_OFF)]
)
def test_a_slow_policy_is_skipped_until_its_excess_time_has_passed(took_s: float, steps_off: int) -> None:
    """The limit is 0.5 s a step, and ten times that in excess. The plan of the slow call is used."""
    clock, policy = Clock(), Scripted()
    plans, faults = planning(clock, policy)
    clock.step_s = took_s
    assert plans.plan(VIEW, {}) is not None
    clock.step_s = 0.0
    for _ in range(steps_off):
        assert plans.plan(VIEW, {}) is None
    assert len(policy.seen) == 1
    assert plans.plan(VIEW, {}) is not None
    assert faults.counted == ({Fault.TOO_SLOW: 1} if steps_off else {})
    assert policy.seen[-1][1] == 1


def test_excess_time_accumulates_and_faster_steps_compensate_it() -> None:
    clock, policy = Clock(), Scripted()
    plans, faults = planning(clock, policy)

    def planned(took_s: float, times: int) -> list[bool]:
        clock.step_s = took_s
        return [plans.plan(VIEW, {}) is not None for _ in range(times)]

    assert all(planned(1.5, 5))  # 5 s in excess, which is tolerated
    assert all(planned(0.25, 4))  # 1 s of it is compensated
    assert all(planned(1.5, 1))
    assert not faults.counted
    assert planned(1.0, 2) == [True, False]
    assert faults.counted == {Fault.TOO_SLOW: 1}


def test_the_time_of_calls_that_fail_counts_too() -> None:
    clock, policy = Clock(), Scripted()
    plans, faults = planning(clock, policy)
    clock.step_s, policy.fails = 6.0, KeyError("x")
    assert plans.plan(VIEW, {}) is None
    policy.fails = None
    assert [plans.plan(VIEW, {}) is None for _ in range(11)] == [True] * 11
    assert faults.counted == {Fault.RAISED: 1, Fault.TOO_SLOW: 1}
    assert len(policy.seen) == 1


def test_a_policy_that_is_always_slow_takes_no_more_time_than_the_limit_on_average() -> None:
    clock, policy = Clock(), Scripted()
    plans, _ = planning(clock, policy)
    clock.step_s = 1.3
    steps = 2000
    for _ in range(steps):
        plans.plan(VIEW, {})
    assert len(policy.seen) * 1.3 <= 0.5 * steps * 1.01 + 11 * 0.5


def test_a_method_that_raises_returns_none_and_its_scheduler_contains_the_error() -> None:
    class Engine:
        def __init__(self) -> None:
            self.errors: list[str] = []

        def _contain(self, error: Exception) -> None:
            self.errors.append(str(error))

        @contained
        def divide(self, number: int, by: int) -> int:
            return number // by

    engine = Engine()
    assert (engine.divide(6, by=3), engine.errors) == (2, [])
    assert engine.divide(6, by=0) is None
    assert engine.errors == ["integer division or modulo by zero"]


def test_a_fault_is_logged_once_for_each_kind_of_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class NoMessage(Exception):
        def __str__(self) -> str:
            raise ValueError

    faults = PolicyFaultLog()
    with caplog.at_level(logging.ERROR):
        faults.count(Fault.RAISED, ValueError("x" * 300))
        faults.count(Fault.RAISED, ValueError("again"))
        faults.count(Fault.RAISED, KeyError("other"))
        faults.count(Fault.PLUGIN, ValueError("ours"))
        faults.count(Fault.PLUGIN, NoMessage())
        faults.count(Fault.TOO_SLOW, ValueError("slow"))
    assert faults.counted == {"raised": 3, "plugin": 2, "too_slow": 1}
    failed = "failed, vLLM plans instead"
    assert [record.getMessage() for record in caplog.records] == [
        f"penstock: the policy {failed}: ValueError: {'x' * 200}",
        f"penstock: the policy {failed}: KeyError: 'other'",
        f"penstock: the plug-in {failed}: ValueError: ours",
        f"penstock: the plug-in {failed}: NoMessage: without words",
        f"penstock: the policy {failed}: ValueError: slow",
    ]
    assert [record.exc_info is None for record in caplog.records] == [False, False, False, False, True]
