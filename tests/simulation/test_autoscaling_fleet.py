"""Fleets whose number of replicas changes: starts and drains, requests that are held, and the cost."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.terms import Scaling
from penstock_core.domain.slo import Slo, Tier
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import (
    Arrival,
    Fleet,
    FleetAutoscaler,
    LengthKnowledge,
    SimulatedOutcome,
    simulate,
)
from penstock_simulator.simulation.autoscaling.autoscaler import ReplicaCounts, gpu_hours, scale_events
from penstock_simulator.simulation.autoscaling.queue_length import (
    QueueLengthAutoscaler,
    QueueTarget,
    in_flight,
)

MODEL = time_model("slos-serve-opt-6.7b-a100")
TIERS = {"chat": Tier("chat", Slo(ttft_s=1.0, tpot_s=0.1)), "batch": Tier("batch", best_effort=True)}
FLEET = Fleet("slos-serve", MODEL, 43296, TIERS, "chat", truth=TruthKind.EXACT, lengths=LengthKnowledge.KNOWN)


def every(gap_s: float, until_s: float, tier: str = "chat", prompt: int = 200) -> list[Arrival]:
    return [Arrival(str(i), i * gap_s, tier, prompt, 20) for i in range(int(until_s / gap_s))]


def served(
    decide: Callable[[DemandObservation, float], int],
    arrivals: list[Arrival],
    *,
    replicas: int = 1,
    startup_s: float = 20.0,
) -> tuple[list[SimulatedOutcome], list[ReplicaCounts]]:
    counts: list[ReplicaCounts] = []
    autoscaler = FleetAutoscaler(decide, period_s=10.0, startup_s=startup_s, on_change=counts.append)
    fleet = replace(FLEET, replicas=replicas)
    return list(simulate(fleet, arrivals, 0, autoscaler=autoscaler)), counts


def scripted(*wanted: int) -> Callable[[DemandObservation, float], int]:
    """The next of these at every look, and the last from then on."""
    return lambda demand, now_s: wanted[min(round(now_s / 10), len(wanted) - 1)]


def test_a_constant_number_of_replicas_equals_a_fixed_fleet() -> None:
    arrivals = every(0.1, 20.0)
    steered, _ = served(scripted(2), arrivals, replicas=2)
    assert steered == list(simulate(replace(FLEET, replicas=2), arrivals, 0))


def test_a_new_replica_accepts_requests_after_its_start() -> None:
    outcomes, counts = served(scripted(1, 2), every(0.2, 60.0))
    on_new = [outcome.arrival_s for outcome in outcomes if outcome.replica == "r1"]
    assert 30.0 <= min(on_new) < 31.0
    assert [(count.at_s, count.ready, count.gpus) for count in counts if count.at_s == 10.0] == [(10.0, 1, 2)]
    assert counts[-1].ready == 2


def test_a_removed_replica_finishes_its_requests_and_accepts_none() -> None:
    long = [Arrival(f"long-{i}", 9.5, "chat", 200, 400) for i in range(4)]
    outcomes, counts = served(
        scripted(2, 1), [*long, *(a for a in every(0.2, 40.0) if a.arrival_s > 9.5)], replicas=2
    )
    on_gone = [outcome for outcome in outcomes if outcome.replica == "r1"]
    assert {outcome.output_tokens for outcome in on_gone} == {20, 400}
    assert all(outcome.arrival_s < 10.0 for outcome in on_gone)
    assert all(outcome.met for outcome in outcomes)
    drained_s = max(outcome.arrival_s + (outcome.e2e_s or 0.0) for outcome in on_gone)
    freed_s = next(count.at_s for count in counts if count.gpus == 1)
    assert freed_s == pytest.approx(drained_s)


def test_a_start_that_is_no_longer_desired_ends_immediately() -> None:
    outcomes, counts = served(scripted(1, 3, 1), every(0.5, 60.0))
    assert [count.gpus for count in counts if count.at_s in {10.0, 20.0}] == [3, 1]
    assert {outcome.replica for outcome in outcomes} == {"r0"}


def test_an_ordinal_is_reused_only_after_its_replica_has_ended() -> None:
    long = [Arrival(f"long-{i}", 9.5, "chat", 200, 800) for i in range(4)]
    outcomes, counts = served(
        scripted(2, 1, 2), [*long, *(a for a in every(0.5, 120.0) if a.arrival_s > 9.5)], replicas=2
    )
    assert max(count.gpus for count in counts) == 2
    drained_s = max(
        o.arrival_s + (o.e2e_s or 0.0) for o in outcomes if o.replica == "r1" and o.arrival_s < 10
    )
    again_s = min(o.arrival_s for o in outcomes if o.replica == "r1" and o.arrival_s > 10)
    assert again_s >= drained_s + 20.0


def test_without_replicas_requests_are_held_until_one_is_ready() -> None:
    held: list[int] = []

    def wake(demand: DemandObservation, now_s: float) -> int:
        held.append(demand.held)
        return max(demand.desired, int(demand.held > 0))

    outcomes, _ = served(wake, every(1.0, 25.0), replicas=0)
    assert held[:2] == [0, 10]
    first = [outcome for outcome in outcomes if outcome.arrival_s < 10.0]
    assert all(30.0 - o.arrival_s < (o.ttft_s or 0.0) < 33.0 - o.arrival_s for o in first)
    assert all(outcome.verdict in {"admitted", "best-effort"} for outcome in outcomes)


def test_decisions_continue_while_all_sessions_think() -> None:
    first = Arrival("0", 0.0, "chat", 200, 20, session="a")
    turns = [first, first._replace(id="1", stage=1, think_s=95.0)]
    outcomes, counts = served(scripted(1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1), turns)
    assert scale_events(counts) == 2
    assert outcomes[-1].arrival_s == pytest.approx(95.0, abs=1.0)
    assert outcomes[-1].ttft_s is not None and outcomes[-1].ttft_s > 20.0, "it waits for the new replica"


def test_counted_demand_equals_the_outcomes() -> None:
    demands: list[DemandObservation] = []

    def desired_replicas(demand: DemandObservation, now_s: float) -> int:
        demands.append(demand)
        return 1

    batch = [arrival._replace(id=f"b{arrival.id}") for arrival in every(0.5, 20.0, "batch")]
    arrivals = sorted([*every(0.02, 20.0, prompt=1500), *batch], key=lambda arrival: arrival.arrival_s)
    outcomes, _ = served(desired_replicas, arrivals)
    chats = [outcome for outcome in outcomes if outcome.tier == "chat"]
    admitted = [outcome for outcome in chats if outcome.verdict == "admitted"]
    counted = [demand.tiers.get("chat", TierDemand()) for demand in demands]
    assert sum(tier.arrived for tier in counted) == len(chats)
    assert sum(tier.admitted for tier in counted) == len(admitted) < len(chats)
    assert sum(tier.best_effort + tier.rejected for tier in counted) == len(chats) - len(admitted)
    assert sum(tier.judged for tier in counted) == len(admitted)
    assert sum(tier.met for tier in counted) == sum(outcome.met for outcome in admitted)
    assert sum(tier.hops for tier in counted) == len(chats)
    assert not any(demand.tiers["batch"].has_slo for demand in demands if "batch" in demand.tiers)
    assert sum(demand.elapsed_s for demand in demands) >= 20.0


def test_requests_that_no_replica_can_ever_serve_are_not_demand() -> None:
    demands: list[DemandObservation] = []

    def desired_replicas(demand: DemandObservation, now_s: float) -> int:
        demands.append(demand)
        return 1

    impossible = replace(FLEET, tiers={"chat": Tier("chat", Slo(ttft_s=0.001))})
    list(
        simulate(impossible, every(1.0, 15.0), 0, autoscaler=FleetAutoscaler(desired_replicas, period_s=10.0))
    )
    counted = [demand.tiers["chat"] for demand in demands if "chat" in demand.tiers]
    assert sum(tier.arrived for tier in counted) == sum(tier.best_effort for tier in counted) == 0


def test_production_decisions_meet_a_load_that_one_replica_cannot() -> None:
    scaling, memory = Scaling(1, 6), AutoscalerState()

    def decide(demand: DemandObservation, now_s: float) -> int:
        nonlocal memory
        decision, memory = decide_replicas(scaling, demand, memory, now_s)
        return decision.replicas

    outcomes, counts = served(decide, every(0.08, 240.0, prompt=1000))
    late = [outcome for outcome in outcomes if outcome.arrival_s > 180.0]
    assert sum(outcome.met for outcome in late) >= 0.95 * len(late)
    assert 1 < counts[-1].desired <= 6
    assert all(after.desired >= before.desired for before, after in pairwise(counts))


# The yardsticks.

REPLICAS_OVER_TIME = [
    ReplicaCounts(0.0, 1, 1, 1),
    ReplicaCounts(100.0, 3, 1, 3),
    ReplicaCounts(160.0, 3, 3, 3),
    ReplicaCounts(400.0, 1, 1, 2),
]


def test_gpu_hours_include_starting_and_draining_replicas() -> None:
    assert gpu_hours(REPLICAS_OVER_TIME, 500.0) * 3600 == 100 * 1 + 300 * 3 + 100 * 2
    assert gpu_hours(REPLICAS_OVER_TIME, 200.0) * 3600 == 100 * 1 + 100 * 3
    assert scale_events(REPLICAS_OVER_TIME) == 2


def waiting_at(loads: list[int], starting: int = 0) -> DemandObservation:
    ready = [
        ReplicaDemand(f"r{i}", ReplicaState.READY, Snapshot(running=load)) for i, load in enumerate(loads)
    ]
    new = [ReplicaDemand(f"s{i}", ReplicaState.STARTING) for i in range(starting)]
    return DemandObservation(15.0, len(loads) + starting, {}, 0, (*ready, *new))


@pytest.mark.parametrize(
    ("loads", "starting", "wanted"),
    [
        ([10, 10], 0, 2),  # on target
        ([11, 10], 0, 2),  # within the tolerance
        ([15, 15], 0, 3),
        ([90, 90], 0, 6),  # four more at most
        ([15, 15], 1, 3),  # one is on its way, and counts as idle
        ([4, 4, 4, 4], 0, 4),  # the window holds it
        ([], 2, 2),  # no replica to try
    ],
)
def test_queue_lengths_are_scaled_as_kubernetes_scales_them(
    loads: list[int], starting: int, wanted: int
) -> None:
    scaler = QueueLengthAutoscaler(QueueTarget(in_flight, 10.0, 1, 9))
    assert scaler.decide(waiting_at(loads, starting), 1000.0) == wanted


def test_queue_lengths_go_down_by_the_largest_of_five_minutes() -> None:
    scaler = QueueLengthAutoscaler(QueueTarget(in_flight, 10.0, 1, 9))
    at = [
        scaler.decide(waiting_at([5, 5, 5, 5] if step else [9, 9, 9, 9]), step * 15.0) for step in range(22)
    ]
    assert at[:20] == [4] * 20
    assert at[20:] == [2, 2]


def test_queue_lengths_may_be_averaged_over_time() -> None:
    scaler = QueueLengthAutoscaler(QueueTarget(in_flight, 10.0, 1, 9, averaged_s=60.0))
    assert [scaler.decide(waiting_at([load]), step * 15.0) for step, load in enumerate([10, 10, 30])] == [
        1,
        1,
        2,
    ]
