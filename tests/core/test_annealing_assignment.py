"""Requests to instances: the roomiest first, in rounds."""

from hypothesis import given
from hypothesis import strategies as st
from penstock_core.policies.annealing.assignment import MemoryProfile, assign
from pytest import approx, raises


def test_each_request_goes_where_most_memory_is_left() -> None:
    assert assign([40, 30, 30, 10], [100, 90]) == [0, 1, 0, 1]


def test_a_new_round_starts_when_the_roomiest_has_no_room() -> None:
    assert assign([80, 80, 80, 60], [100, 90]) == [0, 1, 0, 1]


def test_a_request_that_fits_nowhere_goes_where_there_is_most() -> None:
    assert assign([500, 10], [100, 200]) == [1, 0]


def test_without_instances_nothing_can_be_assigned() -> None:
    with raises(ValueError, match="no instance"):
        assign([1], [])


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 6))
def test_alike_instances_never_differ_by_more_than_the_largest_request(
    tokens: list[int], instances: int
) -> None:
    held = [0] * instances
    for request, instance in zip(tokens, assign(tokens, [10_000] * instances), strict=True):
        held[instance] += request
    assert max(held) - min(held) <= max(tokens, default=0)


def test_memory_is_worth_as_many_tokens_as_its_use_tells() -> None:
    profile = MemoryProfile().observe(8e9, 10e9, 100_000).observe(9e9, 10e9, 70_000)
    assert profile.token_num(1e9) == int(1e9 * 0.85 / (17e9 / 170_000))
    assert profile.token_num(0) == 0
    assert profile.utilities / profile.runs == approx(0.85)


def test_memory_never_used_tells_nothing() -> None:
    with raises(ValueError, match="no run"):
        MemoryProfile().token_num(1e9)
