"""Routers' counters, converted to increases since the last reading."""

from typing import Any

import pytest
from penstock_core.autoscaling.demand import ReplicaState
from penstock_operator.autoscaling.demand import DemandTally, demand_of
from penstock_operator.demand.demand_page import (
    ATTAINMENT,
    COUNTERS,
    DemandReport,
    TierCounts,
    counts_of,
    parse_demand_page,
)


def page(
    since_s: float = 100.0, held: int = 0, replicas: list[dict[str, Any]] | None = None, **counts: int
) -> dict[str, Any]:
    tier = dict.fromkeys((*COUNTERS, *ATTAINMENT), 0) | counts
    return {"held": held, "since_s": since_s, "tiers": {"chat": tier}, "replicas": replicas or []}


def reading(router: str = "a", since_s: float = 100.0, **counts: int) -> DemandReport:
    return parse_demand_page(router, page(since_s, 0, None, **counts))


def arrived(tally: DemandTally, now_s: float, *reports: DemandReport) -> int:
    return tally.added(reports, now_s)[1].get("chat", {}).get("arrived", 0)


def test_the_first_reading_only_starts_the_count() -> None:
    tally = DemandTally()
    elapsed_s, added = tally.added([reading(arrived=500)], 1000.0)
    assert elapsed_s == 0
    assert added["chat"]["arrived"] == 0


def test_a_tally_returns_the_increase_since_the_last_reading() -> None:
    tally = DemandTally()
    tally.added([reading(arrived=500)], 1000.0)
    elapsed_s, added = tally.added([reading(since_s=110, arrived=530)], 1010.0)
    assert (elapsed_s, added["chat"]["arrived"]) == (10.0, 30)


def test_a_restarted_router_has_counted_from_zero() -> None:
    tally = DemandTally()
    tally.added([reading(arrived=500)], 1000.0)
    assert arrived(tally, 1010.0, reading(since_s=3, arrived=7)) == 7


def test_a_router_added_since_counts_in_full() -> None:
    tally = DemandTally()
    tally.added([reading("a", arrived=500)], 1000.0)
    assert arrived(tally, 1010.0, reading("a", 110, arrived=500), reading("b", 4, arrived=9)) == 9


def test_a_router_silent_until_now_only_starts_its_count() -> None:
    tally = DemandTally()
    tally.added([reading("a")], 1000.0)
    assert arrived(tally, 1010.0, reading("a", 110), reading("b", 5000, arrived=90_000)) == 0


def test_a_tier_new_to_a_router_counts_in_full() -> None:
    tally = DemandTally()
    tally.added([reading(arrived=500)], 1000.0)
    later = page(110.0, arrived=500)
    later["tiers"]["coder"] = later["tiers"]["chat"] | {"arrived": 7}
    added = tally.added([parse_demand_page("a", later)], 1010.0)[1]
    assert (added["chat"]["arrived"], added["coder"]["arrived"]) == (0, 7)


def test_a_router_that_missed_one_reading_adds_its_whole_increase_in_the_next() -> None:
    tally = DemandTally()
    tally.added([reading(arrived=500)], 1000.0)
    tally.added([], 1010.0)
    assert arrived(tally, 1020.0, reading(since_s=120, arrived=540)) == 40


def test_routers_that_no_longer_exist_are_forgotten() -> None:
    tally = DemandTally()
    tally.added([reading("a"), reading("b")], 1000.0)
    tally.retain(["b"])
    assert set(tally.last_reports) == {"b"}


def test_attainment_counts_all_requests_of_all_routers() -> None:
    reports = [reading("a", all_judged=90, all_met=80), reading("b", all_judged=10, all_met=10)]
    assert counts_of(reports) == {"chat": TierCounts(100, 90)}


def test_demand_combines_router_readings_and_pod_states() -> None:
    row = {"name": "chat-replica-0", "state": "ready", "age_s": 0.1, "running": 3, "prefill_wait_s": None}
    reported = parse_demand_page("a", page(held=2, replicas=[row]))
    pods = {"chat-replica-0": ReplicaState.READY, "chat-replica-1": ReplicaState.STARTING}
    demand = demand_of(
        DemandTally(), reports=[reported], replicas=pods, desired=2, has_slo={"chat": False}, now_s=1.0
    )
    assert demand.held == 2
    assert demand.desired == 2
    assert [replica.name for replica in demand.ready()] == ["chat-replica-0"]
    assert demand.replicas[0].snapshot.running == 3
    assert demand.replicas[0].snapshot.prefill_wait_s == float("inf")
    assert not demand.tiers["chat"].has_slo


def test_a_null_duration_is_infinite() -> None:
    """A replica whose decodes leave no time for prefills is full, not idle."""
    rows = [{"name": "chat-replica-0", "prefill_wait_s": None, "prefill_slack_s": 0.0}]
    reported, pods = parse_demand_page("a", page(replicas=rows)), {"chat-replica-0": ReplicaState.READY}
    demand = demand_of(DemandTally(), reports=[reported], replicas=pods, desired=1, has_slo={}, now_s=1.0)
    assert demand.replicas[0].snapshot.prefill_wait_s == float("inf")


@pytest.mark.parametrize(
    "wrong", [{}, {"held": 0, "since_s": "x", "tiers": {}}, {"held": 0, "since_s": 1, "tiers": []}]
)
def test_an_invalid_reading_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises((KeyError, TypeError, ValueError, AttributeError)):
        parse_demand_page("a", wrong)
