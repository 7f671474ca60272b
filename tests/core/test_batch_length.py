"""Longest duration of a batch in which no token is due."""

import pytest
from penstock_core.timing.batch_length import ordinary_batch_s


def test_an_ordinary_batch_is_four_shortest_ones_and_not_below_60_ms() -> None:
    assert ordinary_batch_s(0.020) == pytest.approx(0.080)
    assert ordinary_batch_s(0.010) == 0.060


def test_an_ordinary_batch_is_shorter_if_that_wastes_little() -> None:
    assert ordinary_batch_s(0.002) == pytest.approx(8 * 0.002)
