"""Fleets with prefix caches: requests go to replicas with their prefix, while these have capacity."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, Fleet, LengthKnowledge, SimulatedOutcome, simulate
from penstock_simulator.simulation.outcome import FirstVerdict

TIERS = {"agent": Tier("agent", Slo(ttft_slowdown=5, tpot_s=0.1))}
FLEET = Fleet(
    "slos-serve",
    time_model("llama-3-8b-a100"),
    200_000,
    TIERS,
    "agent",
    truth=TruthKind.EXACT,
    lengths=LengthKnowledge.KNOWN,
    replicas=4,
    max_hops=4,
    order="prefix",
    prefix_caching=True,
)
TURN_TOKENS = 1024


def turns(sessions: int, count: int, gap_s: float = 1.0) -> Iterator[Arrival]:
    """Sessions side by side, whose prompts grow by a turn each time."""
    for turn in range(count):
        for session in range(sessions):
            ids = [session * 1000 + block for block in range(2 * (turn + 1))]
            at_s = turn * gap_s + session * gap_s / sessions
            yield Arrival(f"{session}.{turn}", at_s, "agent", TURN_TOKENS * (turn + 1), 20, hash_ids=ids)


def served(fleet: Fleet, arrivals: Iterator[Arrival]) -> Sequence[SimulatedOutcome]:
    return sorted(simulate(fleet, arrivals, 0), key=lambda outcome: outcome.arrival_s)


def test_a_session_stays_at_the_replica_with_its_prefix() -> None:
    outcomes = served(FLEET, turns(5, 6))
    places = {
        session: {outcome.replica for outcome in outcomes if outcome.id.startswith(f"{session}.")}
        for session in range(5)
    }
    assert all(len(replicas) == 1 for replicas in places.values())
    assert len(set.union(*places.values())) == 4
    assert all(outcome.cached_tokens == outcome.prompt_tokens - TURN_TOKENS for outcome in outcomes)


@pytest.mark.parametrize("order", ["best-fit", "lmetric", "least-loaded", "class-affinity"])
def test_orders_by_load_find_prefixes_on_an_idle_fleet(order: str) -> None:
    outcomes = served(replace(FLEET, order=order), turns(3, 5))
    found = sum(outcome.cached_tokens for outcome in outcomes)
    requested = sum(outcome.prompt_tokens - TURN_TOKENS for outcome in outcomes)
    assert found > 0.8 * requested


def test_round_robin_ignores_prefixes() -> None:
    outcomes = served(replace(FLEET, order="round-robin"), turns(5, 6))
    found = sum(outcome.cached_tokens for outcome in outcomes)
    assert found < 0.8 * sum(outcome.prompt_tokens - TURN_TOKENS for outcome in outcomes)


def test_a_popular_prefix_spreads_when_its_replica_is_full() -> None:
    """Twenty prompts per second with 8,000 tokens in common and 2,000 of their own."""
    shared = list(range(16))
    arrivals = (
        Arrival(
            f"{i}", i * 0.02, "agent", 10_240, 20, hash_ids=[*shared, *range(100 * i + 100, 100 * i + 104)]
        )
        for i in range(60)
    )
    outcomes = served(FLEET, arrivals)
    admitted = [outcome for outcome in outcomes if outcome.verdict == "admitted"]
    assert len({outcome.replica for outcome in admitted}) == 4
    assert [outcome.id for outcome in admitted if not outcome.met] == []


def test_without_a_prefix_cache_routers_find_no_prefix() -> None:
    outcomes = served(replace(FLEET, prefix_caching=False), turns(5, 3))
    assert {outcome.cached_tokens for outcome in outcomes} == {0}


def test_a_session_with_rejected_turns_stays_at_the_replica_with_its_prefix() -> None:
    """No replica can meet a TTFT of a millisecond, so each turn is served best effort."""
    hasty = {"agent": Tier("agent", Slo(ttft_s=0.001))}
    outcomes = served(replace(FLEET, tiers=hasty), turns(5, 6, gap_s=2.0))
    assert {outcome.verdict for outcome in outcomes} == {FirstVerdict.BEST_EFFORT}
    assert all(outcome.cached_tokens == outcome.prompt_tokens - TURN_TOKENS for outcome in outcomes)
    assert len({outcome.replica for outcome in outcomes}) > 1
