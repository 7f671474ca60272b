"""The parts of a simulated fleet by themselves: events, sessions, snapshots, lengths, lone settings."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import pytest
from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.domain.slo import Slo, Tier
from penstock_core.domain.verdict import Admitted, BestEffort, Rejected, Verdict
from penstock_core.forecast.length_predictor import LengthPredictor
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.attempts import Attempts, Backup, Try
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation.answer_lengths import KnownLengths, LearnedLengths
from penstock_simulator.simulation.autoscaling.queue_length import (
    QueueLengthAutoscaler,
    QueueTarget,
    in_flight,
    waiting,
)
from penstock_simulator.simulation.event_queue import EventQueue
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.outcome import FirstVerdict, SimulatedOutcome
from penstock_simulator.simulation.replica import STUCK_S, SimulatedReplica, StuckPolicy
from penstock_simulator.simulation.run import REPLAN_S, simulate
from penstock_simulator.simulation.sessions import FORGOTTEN_S, Sessions
from penstock_simulator.simulation.simulated_request import SimulatedRequest, request_of

TIERS = {"chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1), value=3.0)}
FLEET = Fleet("vllm", time_model("slos-serve-opt-6.7b-a100"), 1007, TIERS, "chat")


def test_events_occur_by_time_and_then_in_the_order_of_scheduling() -> None:
    events = EventQueue[str]()
    assert (events.next_s, events.pop_due(inf)) == (None, None)
    for at_s, event in [(2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")]:
        events.schedule(at_s, event)
    assert events.next_s == 1.0
    assert events.pop_due(0.999) is None
    assert [events.pop_due(2.0) for _ in range(5)] == ["a", "b", "c", "d", None]


def arrival(stage: int, session: str = "s") -> Arrival:
    return Arrival(f"{session}{stage}", 0.0, "", 10, 10, 0, session, stage)


def outcome(session: str = "s", verdict: FirstVerdict = FirstVerdict.ADMITTED) -> SimulatedOutcome:
    return SimulatedOutcome(
        "x", "chat", 0.0, 1, 1, verdict, "r0", 1, None, None, None, met=True, session=session
    )


def test_stages_wait_for_one_another_in_order() -> None:
    sessions = Sessions()
    assert [sessions.arrive(arrival(stage), 0.5) for stage in range(3)] == [0.5, None, None]
    assert sessions.ended(outcome(), 1.0) == arrival(1)
    assert sessions.ended(outcome(), 2.0) == arrival(2)
    assert sessions.ended(outcome(), 3.0) is None
    assert sessions.arrive(arrival(3), 4.0) == 4.0, "no request is in progress"


@pytest.mark.parametrize(("now_s", "sent_s"), [(1.0, 3.0), (3.0, 3.0), (8.0, 8.0)])
def test_a_turn_that_arrives_after_the_last_answer_thinks_from_then_on(now_s: float, sent_s: float) -> None:
    sessions = Sessions()
    sessions.arrive(arrival(0), 1.0)
    assert sessions.ended(outcome(verdict=FirstVerdict.FAILED), 1.0) is None
    assert sessions.arrive(arrival(1)._replace(think_s=2.0), now_s) == sent_s
    assert sessions.arrive(arrival(2)._replace(think_s=2.0), now_s) is None


def test_requests_without_a_session_never_wait() -> None:
    sessions = Sessions()
    assert sessions.arrive(arrival(0, ""), 0.5) == 0.5
    assert sessions.arrive(arrival(1, ""), 0.5) == 0.5
    assert not sessions.best_effort(arrival(1, ""))
    assert sessions.ended(outcome(""), 1.0) is None


@pytest.mark.parametrize("verdict", list(FirstVerdict))
def test_a_session_is_best_effort_after_a_turn_that_was_not_admitted(verdict: FirstVerdict) -> None:
    sessions = Sessions()
    sessions.arrive(arrival(0), 0.0)
    assert not sessions.best_effort(arrival(0))
    sessions.ended(outcome(verdict=verdict), 1.0)
    sessions.arrive(arrival(1), 0.0)
    assert sessions.best_effort(arrival(1)) == (verdict is not FirstVerdict.ADMITTED)
    sessions.ended(outcome(), 2.0)
    sessions.arrive(arrival(2), 0.0)
    assert sessions.best_effort(arrival(2)) == (verdict is not FirstVerdict.ADMITTED)
    sessions.ended(outcome(), 3.0)
    sessions.arrive(arrival(0), 0.0)
    assert not sessions.best_effort(arrival(0)), "a first stage begins anew"


@pytest.mark.parametrize(("later_s", "forgotten"), [(FORGOTTEN_S, False), (FORGOTTEN_S + 0.1, True)])
def test_an_idle_session_is_forgotten_after_its_time(later_s: float, forgotten: bool) -> None:
    sessions = Sessions()
    for session in ("s", "t"):
        sessions.arrive(arrival(0, session), 0.0)
    sessions.ended(outcome("s", FirstVerdict.REJECTED), 5.0)
    sessions.ended(outcome("t"), 5.0 + later_s)
    sessions.arrive(arrival(1, "s"), 0.0)
    assert sessions.best_effort(arrival(1, "s")) != forgotten


def test_a_busy_session_is_not_forgotten() -> None:
    sessions = Sessions()
    sessions.arrive(arrival(0), 0.0)
    sessions.ended(outcome(verdict=FirstVerdict.REJECTED), 0.0)
    sessions.arrive(arrival(1), 0.0)
    sessions.arrive(arrival(0, "t"), 0.0)
    sessions.ended(outcome("t"), 2 * FORGOTTEN_S)
    assert sessions.best_effort(arrival(1))


def request(prompt: int = 10, limit: int = 100) -> Request:
    return Request("a", "chat", 0.0, prompt, limit)


def test_learned_lengths_are_predicted() -> None:
    lengths, same = LearnedLengths(), LengthPredictor()
    for tokens in (20, 30, 100, 40, 101):
        lengths.observe(request(), tokens)
        same.observe("chat", 10, tokens, cut_short=tokens >= 100)
    assert lengths.first(request(), 7) == same.predict("chat", 10, 0, 100)
    assert lengths.sure(request(), 7) == same.sure(request())
    assert lengths.extend_prediction is not None
    job = new_job(request(), 25, best_effort=False)._replace(generated_tokens=35)
    assert lengths.extend_prediction(job) == same.predict("chat", 10, 35, 100) > 35


def test_known_lengths_are_exact() -> None:
    known = KnownLengths()
    known.observe(request(), 5)
    assert (known.first(request(), 7), known.sure(request(), 8), known.extend_prediction) == (7, 8, None)


def test_a_fleet_has_the_defaults_of_vllm_and_of_pools() -> None:
    assert (FLEET.block_tokens, FLEET.max_output_tokens, FLEET.max_waiting) == (16, 4096, 1_000_000)
    assert (FLEET.replicas, FLEET.routers, FLEET.max_hops, FLEET.backup) == (1, 1, 3, Backup.BEST_EFFORT)
    assert (FLEET.hop_latency_s, FLEET.snapshot_age_s, FLEET.placement_delay_s) == (0.001, 0.005, inf)
    assert FLEET.longest_tokens == 992
    assert replace(FLEET, max_model_len=500).longest_tokens == 500
    assert replace(FLEET, max_model_len=5000, block_tokens=100).longest_tokens == 1000


@pytest.mark.parametrize(
    ("prompt", "output", "limit", "max_output_tokens"),
    [(100, 50, 4096, 892), (100, 50, 300, 300), (100, 400, 300, 400), (900, 92, 4096, 92)],
)
def test_a_requests_longest_answer_is_its_limit_its_context_or_its_length(
    prompt: int, output: int, limit: int, max_output_tokens: int
) -> None:
    fleet = replace(FLEET, max_output_tokens=limit)
    requested = request_of(Arrival("a", 1.0, "", prompt, output), TIERS["chat"], fleet, 2.0)
    assert (requested.max_output_tokens, requested.arrival_s, requested.value) == (
        max_output_tokens,
        2.0,
        3.0,
    )
    assert (requested.id, requested.tier, requested.prompt_tokens) == ("a", "chat", prompt)


def loads(*running: int, starting: int = 0, desired: int | None = None) -> DemandObservation:
    ready = [
        ReplicaDemand(f"r{i}", ReplicaState.READY, Snapshot(running=load, waiting=2))
        for i, load in enumerate(running)
    ]
    new = [ReplicaDemand(f"s{i}", ReplicaState.STARTING) for i in range(starting)]
    wanted = len(running) + starting if desired is None else desired
    return DemandObservation(15.0, wanted, {}, 0, (*ready, *new))


def target(**more: Any) -> QueueTarget:
    return replace(QueueTarget(in_flight, 10.0, 1, 30), **more)


@pytest.mark.parametrize(
    ("demand", "wanted"),
    [
        (loads(9, 8), 2),  # 10.5 each is within the tolerance
        (loads(10, 9), 3),  # 11.5 is not
        (loads(7, 7), 2),  # nor is 9, from below
        (loads(6, 6), 2),  # a lower one: 8 each of 10 rounds up
        (loads(3, 3, 3), 3),  # 5 each would be two: the window holds it
        (loads(18, starting=1), 2),  # 20 on two is on target
        (loads(19, starting=1), 2),  # 21 on two is within the tolerance
        (loads(21, starting=1), 3),  # 23 on two is not
        (loads(9, starting=1), 2),  # 11 on one is more, on two it is less: no change
        (loads(6, starting=3), 4),  # 8, and three that count as on target
        (loads(98), 5),  # four more
        (loads(*[98] * 6), 12),  # or twice as many
        (loads(starting=3), 3),  # no replica to try
    ],
)
def test_a_queue_target_is_computed_as_in_kubernetes(demand: DemandObservation, wanted: int) -> None:
    assert QueueLengthAutoscaler(target()).decide(demand, 1000.0) == wanted


def test_bounds_hold_for_every_queue() -> None:
    assert QueueLengthAutoscaler(target(max_replicas=3)).decide(loads(98, 98), 0.0) == 3
    assert QueueLengthAutoscaler(target(min_replicas=4)).decide(loads(0, 0), 0.0) == 4


def test_a_scale_down_waits_for_its_window() -> None:
    scaler = QueueLengthAutoscaler(target(scale_down_window_s=30.0))
    at = [
        scaler.decide(loads(8, 8, 8, 8) if step == 0 else loads(0, 0, 0, 0), 15.0 * step) for step in range(4)
    ]
    assert at == [4, 4, 1, 1]


def test_a_metric_counts_waiting_requests_or_all() -> None:
    assert (waiting(Snapshot(running=3, waiting=2)), in_flight(Snapshot(running=3, waiting=2))) == (2, 5)


def test_an_average_covers_its_period() -> None:
    scaler = QueueLengthAutoscaler(target(averaged_s=30.0))
    assert [scaler.decide(loads(load, desired=1), 15.0 * step) for step, load in enumerate((8, 14, 38))] == [
        1,
        2,
        3,
    ]


@dataclass
class Idle:
    """Admits, and plans the steps that it is given, in turn."""

    steps: list[Step]

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        return [BestEffort() if job.best_effort else Admitted(0.0, 0.0) for job in new]

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        return (self.steps.pop(0) if self.steps else Step()), None


def verdict_on(
    replica: SimulatedReplica, name: str, now_s: float, output: int = 3, *, best_effort: bool = False
) -> Verdict:
    coming = Arrival(name, now_s, "", 10, output)
    requested = request_of(coming, TIERS["chat"], FLEET, now_s)
    attempts, tried = Attempts((), 1, Backup.REJECT), Try("r0", 1)
    replica.new_requests.append(
        SimulatedRequest(coming, requested, best_effort=best_effort, router=0, attempts=attempts, tried=tried)
    )
    ((_, verdict),) = replica.admit(now_s)
    return verdict


def arrived(replica: SimulatedReplica, name: str, now_s: float, output: int = 3) -> None:
    assert verdict_on(replica, name, now_s, output) == Admitted(0.0, 0.0)


def test_a_replica_accepts_best_effort_up_to_its_queue_bound() -> None:
    replica = SimulatedReplica("r0", replace(FLEET, max_waiting=2), Idle([Step({"a": 10})]), 0)
    assert [type(verdict_on(replica, name, 0.0, 1, best_effort=True)) for name in "abc"] == [
        BestEffort,
        BestEffort,
        Rejected,
    ]
    arrived(replica, "with an SLO", 0.0)
    end_s = replica.begin(0.0)
    assert end_s is not None
    assert [ended.arrival.id for ended in replica.finish(end_s)] == ["a"]
    assert [type(verdict_on(replica, name, end_s, best_effort=True)) for name in "de"] == [
        BestEffort,
        Rejected,
    ]


def test_a_policy_may_leave_an_engine_idle_for_a_bounded_time() -> None:
    replica = SimulatedReplica("r0", FLEET, Idle([]), 0)
    arrived(replica, "a", 1000.0)
    assert replica.begin(1000.0 + STUCK_S) is None
    assert not replica.busy
    with pytest.raises(StuckPolicy, match="r0 has 1 requests, and its policy has planned no batch for 600 s"):
        replica.begin(1000.5 + STUCK_S)
    replica = SimulatedReplica("r0", FLEET, Idle([Step({"a": 10}), Step(), Step({"b": 10}), Step()]), 0)
    arrived(replica, "a", 1000.0, output=1)
    end_s = replica.begin(1500.0)
    assert end_s is not None
    assert end_s > 1500.0
    assert replica.busy
    assert [ended.arrival.id for ended in replica.finish(end_s)] == ["a"]
    assert not replica.busy
    arrived(replica, "b", 5000.0)
    arrived(replica, "c", 5000.0 + STUCK_S)
    assert replica.begin(5000.0 + STUCK_S) is None, "counted from the first that came to an empty engine"
    end_s = replica.begin(5000.0 + STUCK_S)
    assert end_s is not None
    assert replica.finish(end_s) == []
    assert replica.begin(end_s + STUCK_S) is None, "counted from the last iteration"
    with pytest.raises(StuckPolicy):
        replica.begin(end_s + STUCK_S + 0.5)


class LateStarter:
    """Admits, and plans a step only from some time on. asked_s: when it was asked for one."""

    def __init__(self, begins_s: float) -> None:
        self.begins_s, self.asked_s = begins_s, list[float]()

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> list[Verdict]:
        return [Admitted(0.0, 0.0) for _ in new]

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        self.asked_s.append(view.now_s)
        jobs = (*view.running, *view.waiting) if view.now_s >= self.begins_s else ()
        return Step({job.request.id: job.pending_tokens for job in jobs}), None


def test_a_policy_that_idles_is_called_again_at_arrivals_and_after_one_pause() -> None:
    policy = LateStarter(begins_s=0.015)
    fleet = replace(FLEET, hop_latency_s=0.0)
    requests = [Arrival(name, at_s, "", 10, 1) for name, at_s in (("a", 0.0), ("b", 0.004))]
    ended = list(simulate(fleet, requests, 0, build=lambda name, knobs: policy))
    assert [outcome.verdict for outcome in ended] == [FirstVerdict.ADMITTED] * 2
    assert policy.asked_s == pytest.approx([0.0, 0.004, REPLAN_S, 2 * REPLAN_S])
