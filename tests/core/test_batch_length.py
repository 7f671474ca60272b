"""Longest duration of a batch in which no token is due."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.batch_length import ordinary_batch_s, smooth_batch_s


def test_an_ordinary_batch_is_four_shortest_ones_and_not_below_60_ms() -> None:
    assert ordinary_batch_s(0.020) == pytest.approx(0.080)
    assert ordinary_batch_s(0.010) == 0.060


def test_an_ordinary_batch_is_shorter_if_that_wastes_little() -> None:
    assert ordinary_batch_s(0.002) == pytest.approx(8 * 0.002)


@given(st.floats(1e-5, 1.0))
def test_beside_judged_gaps_a_batch_is_never_longer_than_an_ordinary_one(shortest_s: float) -> None:
    assert shortest_s < smooth_batch_s(shortest_s) <= ordinary_batch_s(shortest_s)
