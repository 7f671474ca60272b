"""Slow steps: how often they come is learned, and how many a plan must survive follows from that."""

from collections.abc import Iterable
from math import comb, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.step_tail import (
    CHANGED_STEPS,
    LEAST_CHANCE,
    MANY_STEPS,
    MOST_EXCESS,
    SLOW,
    StepTail,
    spare_steps,
    step_end_s,
)


def after(ratios: Iterable[float], start: StepTail | None = None, observed: int = 0) -> StepTail:
    tail = start or StepTail()
    for number, relative in enumerate(ratios, observed):
        tail = tail.after(relative, number)
    return tail


def steps(chance: float, factor: float, count: int, seed: int = 5) -> list[float]:
    draw = Random(seed)
    return [factor if draw.random() < chance else 1.0 for _ in range(count)]


@pytest.mark.parametrize(("chance", "factor"), [(0.02, 4.0), (0.05, 2.5)])
def test_share_and_excess_of_slow_steps_are_learned(chance: float, factor: float) -> None:
    tail = after(steps(chance, factor, 6000))
    assert tail.chance == pytest.approx(chance, rel=0.4)
    assert tail.excess == pytest.approx(factor - 1)


def test_an_engine_of_constant_speed_has_no_slow_steps() -> None:
    assert after([SLOW, 1.0, 0.2] * 100) == StepTail()


def test_one_slow_step_among_the_first_hundred_counts() -> None:
    assert after([*100 * [1.0], 4.0]).chance > LEAST_CHANCE
    assert after([4.0], observed=5000).chance < LEAST_CHANCE


def test_the_first_slow_step_is_remembered_for_more_than_three_hundred_steps() -> None:
    """With one slow step in fifty, 6 % of second ones come more than 140 steps after the first."""
    first = after([4.0])
    assert after(300 * [1.0], first, 1).chance > LEAST_CHANCE > after(400 * [1.0], first, 1).chance


def test_the_first_slow_step_counts_twice_and_later_ones_once() -> None:
    first, second = after([4.0]), after([4.0, 1.0, 4.0])
    assert first.chance == pytest.approx(2 / 60)
    assert second.chance == pytest.approx(3 / 62, rel=0.05)


def test_slow_steps_are_forgotten() -> None:
    rough = after(steps(0.02, 4.0, 3000))
    assert after(2500 * [1.0], rough, 3000).chance < LEAST_CHANCE < rough.chance


def test_an_engine_that_has_become_slower_has_no_more_slow_steps_than_the_first_two() -> None:
    row, slower = after((CHANGED_STEPS - 1) * [2.0]), after(500 * [2.0])
    assert (slower.chance, slower.excess) == (row.chance, row.excess)
    assert after([1.0, 2.0], slower, 500).chance > slower.chance


def test_a_stall_of_minutes_counts_as_the_largest_excess() -> None:
    assert after([1e6]).excess == MOST_EXCESS


def test_a_share_of_the_tail_fades() -> None:
    assert StepTail(0.02, 3.0, 1).fading(0.5) == StepTail(0.01, 3.0, 1)


def more_slow(chance: float, steps: int, spare: int) -> float:
    """Return the probability of more slow steps than there is time for."""
    return sum(
        comb(steps, slow) * chance**slow * (1 - chance) ** (steps - slow)
        for slow in range(spare + 1, steps + 1)
    )


@given(st.floats(0.001, 0.2), st.integers(1, 60), st.sampled_from((1e-5, 1e-3, 0.02)))
def test_more_steps_are_slow_than_expected_with_at_most_the_risk(
    chance: float, steps: int, risk: float
) -> None:
    spare = spare_steps(chance, steps, risk)
    assert spare == steps or more_slow(chance, steps, int(spare)) <= risk


@pytest.mark.parametrize(
    ("steps", "risk", "spare"), [(10, 1e-4, 3), (10, 0.02, 1), (1, 0.021, 0), (1, 0.01, 1)]
)
def test_few_slow_steps_are_expected_of_one_in_fifty(steps: int, risk: float, spare: int) -> None:
    assert spare_steps(0.02, steps, risk) == spare


def test_an_engine_without_slow_steps_needs_no_time_for_them() -> None:
    assert spare_steps(0.0, 10, 1e-9) == 0


def test_over_many_steps_the_spread_averages_out() -> None:
    many = spare_steps(0.02, 50_000, 0.02)
    assert 1000 < many < 1.2 * 1000
    assert spare_steps(0.02, MANY_STEPS / 0.02, 0.02) == pytest.approx(
        spare_steps(0.02, 1.001 * MANY_STEPS / 0.02, 0.02), rel=0.1
    )
    assert spare_steps(1.0, 500, 0.02) == 500


def test_a_step_that_is_overdue_is_a_slow_one() -> None:
    assert step_end_s(10.0, 0.1, 3.0, 9.95) == 10.0
    assert step_end_s(10.0, 0.1, 3.0, 10.01) == pytest.approx(10.3)
    assert step_end_s(10.0, 0.1, 0.0, 10.01) == 10.01
    assert step_end_s(10.0, 0.1, 3.0, 11.0) == 11.0
    assert step_end_s(-inf, 0.0, 3.0, 11.0) == 11.0
