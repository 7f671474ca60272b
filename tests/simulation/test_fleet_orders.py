"""Whole fleets under each order: effects that an order may and may not have."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import inf
from random import Random

import pytest
from penstock_core.domain.slo import Slo, Tier
from penstock_core.routing.orders import ORDERS
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.policies import build
from penstock_simulator.simulation import Arrival, Fleet, LengthKnowledge, SimulatedOutcome, simulate
from penstock_simulator.simulation.replica import SimulatedReplica
from penstock_simulator.simulation.snapshots import ReplicaSnapshots

TIERS = {
    "chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1)),
    "coder": Tier("coder", Slo(ttft_slowdown=5, tpot_s=0.05)),
}
FLEET = Fleet(
    "slos-serve",
    time_model("slos-serve-opt-6.7b-a100"),
    43_296,
    TIERS,
    "chat",
    truth=TruthKind.EXACT,
    lengths=LengthKnowledge.KNOWN,
    replicas=4,
    max_hops=4,
)
STALE_S = 0.5
BURSTS = 2


def bursts() -> Iterator[Arrival]:
    """Every two seconds thirty requests within a fifth of one: more than any replica alone can start."""
    random = Random(4)
    for burst in range(BURSTS):
        for i, late_s in enumerate(sorted(random.uniform(0, 0.2) for _ in range(30))):
            at_s, tier = 2.0 * burst + late_s, random.choice(("chat", "coder"))
            yield Arrival(f"{burst}.{i}", at_s, tier, random.randint(50, 1500), random.randint(1, 60))


@cache
def served(order: str, age_s: float = 0.005) -> tuple[SimulatedOutcome, ...]:
    fleet = replace(FLEET, order=order, snapshot_age_s=age_s)
    return tuple(simulate(fleet, bursts(), 0))


@pytest.mark.parametrize("order", ORDERS)
def test_with_outdated_snapshots_every_request_is_served_and_slos_are_met(order: str) -> None:
    outcomes = served(order, STALE_S)
    assert Counter(outcome.id for outcome in outcomes) == Counter(arrival.id for arrival in bursts())
    assert all(outcome.output_tokens > 0 for outcome in outcomes)
    assert [outcome.id for outcome in outcomes if outcome.verdict == "admitted" and not outcome.met] == []


@pytest.mark.parametrize("order", [name for name in ORDERS if name != "round-robin"])
def test_an_order_by_load_needs_fewer_hops(order: str) -> None:
    """Every fourth prompt is long: in turn, all of those come to the same one of four replicas."""
    long = [Arrival(str(i), 0.02 * i, "chat", 60 if i % 4 else 1900, 5) for i in range(100)]

    def hops(name: str) -> int:
        return sum(outcome.hops for outcome in simulate(replace(FLEET, order=name), long, 0))

    assert hops(order) < hops("round-robin")


@pytest.mark.parametrize("order", ORDERS)
def test_no_replica_is_idle_in_a_burst(order: str) -> None:
    burst = [Arrival(str(i), 1.0, "chat", 1000, 5) for i in range(16)]
    outcomes = list(simulate(replace(FLEET, order=order, replicas=16, max_hops=1), burst, 0))
    assert Counter(outcome.replica for outcome in outcomes) == {f"r{i}": 1 for i in range(16)}


def test_a_burst_does_not_follow_a_stale_snapshot_to_one_replica() -> None:
    """Half a second old, no snapshot includes a request of the burst."""
    first = Counter(outcome.replica for outcome in served("best-fit", STALE_S) if outcome.hops == 1)
    assert len(first) == 4
    assert max(first.values()) < 2 * min(first.values())


def test_shared_placements_reach_other_routers_after_a_delay() -> None:
    idle = SimulatedReplica("r0", FLEET, build(FLEET.policy, FLEET.knobs), 0).planning_view(0.0)
    for heard_s, received in ((0.003, 1), (inf, 0)):
        snapshots = ReplicaSnapshots("r0", idle, STALE_S, heard_s)
        snapshots.sent("a", router=0, uncached_tokens=100, now_s=1.0)
        assert snapshots.load(router=0, now_s=1.0).sent == 1
        assert snapshots.load(router=1, now_s=1.002).sent == 0
        assert snapshots.load(router=1, now_s=1.004).sent == received


def test_similar_tpot_targets_share_replicas() -> None:
    def steady() -> Iterator[Arrival]:
        random, now_s = Random(4), 0.0
        for i in range(200):
            now_s += random.expovariate(16.0)
            tier = random.choice(("chat", "coder"))
            yield Arrival(str(i), now_s, tier, random.randint(50, 600), random.randint(20, 120))

    def apart(name: str) -> float:
        """Share of requests whose replica serves more of their tier than of the other one."""
        outcomes = simulate(replace(FLEET, order=name), steady(), 0)
        at = Counter((outcome.replica, outcome.tier) for outcome in outcomes)
        return sum(max(at[f"r{i}", "chat"], at[f"r{i}", "coder"]) for i in range(4)) / at.total()

    assert apart("class-affinity") > 0.8
    assert apart("best-fit") < 0.6
