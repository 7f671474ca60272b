"""How long a replica may send no message about a request that it has accepted."""

from math import inf, isfinite, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.verdict import Admitted, BestEffort
from penstock_core.routing.progress import (
    SHORTEST_S,
    SLOWEST_TOKEN_S,
    TIMES_FORECAST,
    WITHOUT_FORECAST_S,
    longest_silence_s,
)


def test_a_stream_is_bounded_by_its_first_token() -> None:
    assert longest_silence_s(Admitted(20.0, 0.1), 1) == pytest.approx(TIMES_FORECAST * 20.1)


def test_a_short_forecast_leaves_engines_time_for_a_stall() -> None:
    assert longest_silence_s(Admitted(0.1, 0.01), 1) == SHORTEST_S


def test_a_whole_answer_may_be_silent_until_its_end() -> None:
    assert longest_silence_s(Admitted(1.0, 0.05), 4000) == pytest.approx(TIMES_FORECAST * 201)


def test_best_effort_has_no_forecast() -> None:
    assert longest_silence_s(BestEffort(), 1) == WITHOUT_FORECAST_S + SLOWEST_TOKEN_S
    assert longest_silence_s(BestEffort(), 100) == WITHOUT_FORECAST_S + 100 * SLOWEST_TOKEN_S


@pytest.mark.parametrize("forecast_s", [nan, inf, -inf])
def test_an_invalid_forecast_counts_as_missing(forecast_s: float) -> None:
    without = longest_silence_s(BestEffort(), 7)
    assert longest_silence_s(Admitted(forecast_s, 0.1), 7) == without
    assert longest_silence_s(Admitted(0.1, forecast_s), 7) == without


@given(st.floats(), st.floats(), st.integers(1, 2**32))
def test_every_request_has_a_bound(ttft_s: float, tpot_s: float, tokens: int) -> None:
    bound_s = longest_silence_s(Admitted(ttft_s, tpot_s), tokens)
    assert bound_s >= SHORTEST_S
    assert isfinite(bound_s) or ttft_s > 1e307 or tpot_s > 1e290
