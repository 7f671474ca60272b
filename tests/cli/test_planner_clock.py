"""Planning times of a simulation's policies, by a clock that the test advances."""

from collections.abc import Sequence

import pytest
from penstock_cli.replay.report import PlannerTimes
from penstock_cli.simulate import planner_clock
from penstock_cli.simulate.planner_clock import PlannerClock
from penstock_core.domain.policy import Knobs, Step
from penstock_core.domain.replica_view import KvCache, Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.builtin_models import time_model

VIEW = ReplicaView(0.0, 0.0, (), (), KvCache(10, 10, 16), Limits(), time_model("llama-3-8b-a100"))


class Ticking:
    """Takes 2 ms to admit, and 1 ms for a step of 40 ms."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def start(self) -> int:
        return 7

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        self.now_s += 0.002
        return []

    def step(self, view: ReplicaView, memory: int) -> tuple[Step, int]:
        self.now_s += 0.001
        return Step(duration_s=0.04), memory + 1


def test_calls_are_timed_and_forwarded(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, clock = Ticking(), PlannerClock()
    monkeypatch.setattr(planner_clock, "perf_counter", lambda: policy.now_s)
    monkeypatch.setattr("penstock_simulator.policies.build", lambda name, knobs: policy)
    timed = clock.build("any", Knobs())
    assert clock.step_share is None and clock.times() == PlannerTimes(None, None, None)
    assert timed.start() == 7
    assert timed.admit(VIEW, ()) == []
    assert [timed.step(VIEW, memory) for memory in (1, 2)] == [
        (Step(duration_s=0.04), 2),
        (Step(duration_s=0.04), 3),
    ]
    assert list(clock.admissions_s) == pytest.approx([0.002])
    assert clock.step_share == pytest.approx(0.025)


def test_percentiles_are_in_milliseconds() -> None:
    clock = PlannerClock()
    clock.admissions_s.extend([0.004, 0.001, 0.002])
    assert clock.times() == PlannerTimes(2.0, 4.0, 4.0)
