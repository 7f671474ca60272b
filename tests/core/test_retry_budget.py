"""Requests that are sent again stay a bounded share of all."""

from hypothesis import given
from hypothesis import strategies as st
from penstock_core.routing.retry_budget import LARGEST_BUDGET, SHARE, RetryBudget


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000)), max_size=20))
def test_replays_are_at_most_the_reserve_and_a_share_of_all_requests(bursts: list[tuple[int, int]]) -> None:
    budget, requests, replays = RetryBudget(), 0, 0
    for arriving, lost in bursts:
        for _ in range(arriving):
            budget = budget.arrived()
        requests += arriving
        for _ in range(lost):
            after = budget.replayed()
            replays += after is not None
            budget = after or budget
        assert replays <= LARGEST_BUDGET + SHARE * requests + 1e-6
        assert 0 <= budget.left <= LARGEST_BUDGET


def test_one_replicas_loss_is_covered_and_the_next_ones_are_not() -> None:
    budget = RetryBudget()
    for _ in range(int(LARGEST_BUDGET)):
        after = budget.replayed()
        assert after is not None
        budget = after
    assert budget.replayed() is None
    for _ in range(int(1 / SHARE)):
        assert budget.replayed() is None
        budget = budget.arrived()
    assert budget.replayed() is not None


def test_a_full_budget_costs_nothing() -> None:
    budget = RetryBudget()
    assert budget.arrived() is budget
