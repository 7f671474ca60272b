"""A request counts as lost by its own forecast, never because of a long queue."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.forecast.overdue import LEAST_S, Expected, Signs, Where, is_overdue, patience_s

MOST_S = 60.0
EXPECTED = Expected(first_s=1.0, step_s=0.05, work_s=4.0, tokens=1000)
SECONDS = st.floats(0, 1e4)


def lost_after_s(where: Where, engine_s: float = 0.0, expected: Expected = EXPECTED) -> float:
    """Seconds without a sign after which a request is first overdue, to a tenth."""
    return next(
        tenths / 10
        for tenths in range(100_000)
        if is_overdue(Signs(where, 0.0, min(engine_s, tenths / 10)), expected, tenths / 10, MOST_S)
    )


@pytest.mark.parametrize(
    ("where", "seconds"),
    [
        (Where.RUNNING, 0.05 + LEAST_S),
        (Where.COMING, LEAST_S),
        (Where.QUEUED, 4.0 + 36.0),
        (Where.UNSEEN, 4.0 + 50.0 + MOST_S),
    ],
)
def test_a_request_without_progress_is_lost_once_it_is_late_by_its_forecast(
    where: Where, seconds: float
) -> None:
    assert lost_after_s(where) == pytest.approx(seconds, abs=0.2)


def test_a_progressing_queue_is_a_fault_only_after_ten_times_its_work() -> None:
    assert lost_after_s(Where.QUEUED, engine_s=1e9) == pytest.approx(10 * 4.0 + MOST_S, abs=0.2)


def test_a_long_iteration_is_waited_for() -> None:
    assert lost_after_s(Where.RUNNING, expected=EXPECTED._replace(step_s=3.0)) == pytest.approx(30, abs=0.2)


@pytest.mark.parametrize(
    ("where", "engine_s", "most_s", "allowed_s"),
    [
        (Where.RUNNING, 0.0, MOST_S, 0.25 + LEAST_S),
        (Where.COMING, 0.0, 7.0, 7.0),
        (Where.QUEUED, 0.0, MOST_S, 4.0 + 36.0),
        (Where.QUEUED, 0.0, 2.0, 2.0 + 2.0),
        (Where.QUEUED, 1e9, MOST_S, 10 * 4.0 + MOST_S),
        (Where.QUEUED, 1e9, 5.0, 10 * 4.0 + LEAST_S),
        (Where.UNSEEN, 0.0, MOST_S, 4.0 + 250.0 + MOST_S),
    ],
)
def test_a_request_may_be_late_by_exactly_the_allowance(
    where: Where, engine_s: float, most_s: float, allowed_s: float
) -> None:
    expected, signs = EXPECTED._replace(step_s=0.25), Signs(where, 0.0, engine_s)
    assert not is_overdue(signs, expected, allowed_s, most_s)
    assert is_overdue(signs, expected, allowed_s + 1e-6, most_s)


@given(SECONDS, SECONDS)
def test_the_allowance_is_within_its_bounds(forecast_s: float, most_s: float) -> None:
    allowed_s = patience_s(forecast_s, most_s) - forecast_s
    assert allowed_s <= most_s + 1e-6
    assert allowed_s >= min(LEAST_S, most_s) - 1e-6


@given(st.sampled_from(Where), SECONDS, SECONDS, SECONDS)
def test_a_request_that_is_not_overdue_was_not_before(
    where: Where, own_s: float, engine_s: float, now_s: float
) -> None:
    signs = Signs(where, min(own_s, now_s), min(engine_s, now_s))
    if not is_overdue(signs, EXPECTED, now_s, MOST_S):
        assert not is_overdue(signs, EXPECTED, (signs.own_s + now_s) / 2, MOST_S)
