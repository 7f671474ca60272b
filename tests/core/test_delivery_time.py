"""The time of requests outside of iterations is a high quantile of the latest, and at least the pool's."""

from collections.abc import Iterable
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.delivery_time import FEWEST, LATEST, DeliveryTime, delivered, delivery_time


def after(samples_s: Iterable[float], least_s: float = 0.005) -> DeliveryTime:
    state = delivery_time(least_s)
    for sample_s in samples_s:
        state = delivered(state, sample_s)
    return state


def test_the_pools_value_counts_until_there_are_enough_requests() -> None:
    assert after([]).seconds == 0.005
    assert after([0.04] * (FEWEST - 1)).seconds == 0.005
    assert after([0.04] * FEWEST).seconds == 0.04


def test_the_time_of_an_idle_engine_counts_until_there_are_enough_requests() -> None:
    state = delivery_time(0.005, idle_s=0.02)
    assert state.seconds == 0.02
    for _ in range(FEWEST):
        state = delivered(state, 0.03)
    assert state.seconds == 0.03
    assert delivery_time(0.005, idle_s=0.001).seconds == 0.005


def test_a_path_that_is_shorter_than_the_pools_value_does_not_count() -> None:
    assert after([0.001] * 50).seconds == 0.005


def test_a_rare_delay_does_not_count_and_a_frequent_one_does() -> None:
    assert after(([0.04] * 24 + [1.0]) * 5).seconds == 0.04
    assert after(([0.04] * 14 + [1.0]) * 8).seconds == 1.0


def test_only_the_latest_requests_count() -> None:
    assert after([0.5] * 1000 + [0.02] * LATEST).seconds == 0.02
    assert len(after([0.5] * 1000).samples_s) == LATEST


@given(st.lists(st.floats(0.0, 10.0), max_size=200), st.floats(0.0, 1.0))
def test_it_is_within_the_samples_and_the_pools_value(samples_s: list[float], least_s: float) -> None:
    seconds = after(samples_s, least_s).seconds
    assert least_s <= seconds <= max([least_s, *samples_s])


@pytest.mark.parametrize("sample_s", [-0.001, nan, inf])
def test_an_impossible_time_is_an_error(sample_s: float) -> None:
    with pytest.raises(ValueError, match="outside of iterations"):
        delivered(delivery_time(0.0), sample_s)
