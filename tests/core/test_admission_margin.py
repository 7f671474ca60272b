"""The margin of admission widens while too few admitted requests meet their SLO, and narrows again."""

from collections.abc import Iterable
from math import inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.admission_margin import (
    HALF_LIFE_S,
    MOST_MARGIN,
    QUIET_S,
    TARGET_SHARE,
    AdmissionMargin,
    judged,
    margin_at,
    widened,
)
from penstock_core.timing.builtin_models import time_model

MODEL = time_model("llama-3-8b-a100")


def after(outcomes: Iterable[bool], every_s: float = 0.1) -> AdmissionMargin:
    """The margin after requests that ended one after the other, and kept their SLO or not."""
    state = AdmissionMargin()
    for number, met in enumerate(outcomes, 1):
        state = judged(state, met, number * every_s)
    return state


def outcomes(kept: float, count: int = 2000) -> list[bool]:
    draw = Random(count)
    return [draw.random() < kept for _ in range(count)]


def test_the_model_is_unchanged_while_all_requests_meet_their_slo() -> None:
    assert widened(MODEL, after(100 * [True]), 10.0) is MODEL


def test_a_request_that_missed_widens_the_margin() -> None:
    state = after([True, False])
    assert state.margin > 1.0
    assert widened(MODEL, state, state.at_s).scale == pytest.approx(MODEL.scale * state.margin)


def test_the_margin_widens_as_fewer_requests_meet_their_slo() -> None:
    margins = [after(outcomes(kept)).margin for kept in (1.0, 0.999, 0.95, 0.8, 0.0)]
    assert margins == sorted(margins)
    assert margins[0] == 1.0
    assert margins[2] > 1.2
    assert margins[-1] == MOST_MARGIN


def test_one_miss_weighs_as_much_as_the_target_allows() -> None:
    kept = round(TARGET_SHARE / (1 - TARGET_SHARE))
    assert after([False, *kept * [True]], every_s=0.0).margin == pytest.approx(1.0)
    assert after([False, *(kept // 2) * [True]], every_s=0.0).margin > 1.0


@given(history=st.lists(st.booleans(), max_size=30), place=st.integers(0, 29))
def test_another_miss_never_narrows_it(history: list[bool], place: int) -> None:
    worse = [met and number != place for number, met in enumerate(history)]
    assert after(worse).margin >= after(history).margin


@given(
    st.lists(
        st.tuples(st.booleans(), st.floats(-1e300, 1e300, allow_nan=False, allow_infinity=False)), max_size=40
    ),
    st.floats(-1e300, 1e300),
)
def test_every_history_gives_a_margin_within_bounds(history: list[tuple[bool, float]], now_s: float) -> None:
    state = AdmissionMargin()
    for met, at_s in history:
        state = judged(state, met, at_s)
        assert 1.0 <= state.margin <= MOST_MARGIN
    assert 1.0 <= margin_at(state, now_s) <= state.margin
    assert 0 < widened(MODEL, state, now_s).scale < inf


def test_a_replica_that_admits_no_request_recovers_in_bounded_time() -> None:
    state = after(500 * [False])
    assert margin_at(state, state.at_s + QUIET_S) == MOST_MARGIN
    assert margin_at(state, state.at_s + QUIET_S + HALF_LIFE_S) == pytest.approx(1 + (MOST_MARGIN - 1) / 2)
    assert margin_at(state, state.at_s + QUIET_S + 10 * HALF_LIFE_S) < 1.01


def test_a_clock_that_runs_backwards_changes_nothing() -> None:
    state = AdmissionMargin(2.0, 100.0)
    assert margin_at(state, 50.0) == 2.0
    assert judged(state, False, 50.0).at_s == 100.0


@pytest.mark.parametrize("now_s", [nan, inf, -inf])
def test_an_impossible_time_is_refused(now_s: float) -> None:
    with pytest.raises(ValueError, match="a request cannot end at"):
        judged(AdmissionMargin(), True, now_s)
