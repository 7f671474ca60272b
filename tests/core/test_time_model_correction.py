"""Online correction: follows the engine, is not taught by stalls, leaves room for noise."""

from collections.abc import Callable, Iterable
from math import exp, inf, nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.correction import (
    MOST_DEADLINE_MARGIN,
    REST_HALF_LIFE_S,
    Correction,
    corrected,
    expected,
    observe,
    rested,
)
from penstock_core.timing.quantile_margin import MOST_MARGIN
from penstock_core.timing.step_tail import StepTail
from penstock_core.timing.time_model import BatchWork

MODEL = time_model("llama-3-8b-a100")
WORK = BatchWork(500, context_tokens=10_000)
PREDICTED_S = MODEL.seconds(WORK)


def after(ratios: Iterable[float], start: Correction | None = None) -> Correction:
    """Return the correction after iterations whose durations are the model's times these ratios."""
    correction = start or Correction()
    for ratio in ratios:
        correction = observe(correction, MODEL, WORK, ratio * PREDICTED_S)
    return correction


def noisy(level: float, spread: float, count: int, seed: int = 1) -> list[float]:
    draw = Random(seed)
    return [level * exp(draw.gauss(0.0, spread)) for _ in range(count)]


# Where the engine's speed lies from its model, its noise, and how many iterations it takes to be known.
SPEEDS = [(1.0, 0.03, 50), (1.3, 0.03, 50), (0.7, 0.03, 50), (2.0, 0.05, 60), (0.3, 0.05, 100)]


@pytest.mark.parametrize(("level", "spread", "count"), SPEEDS)
def test_an_engines_speed_is_learned_quickly(level: float, spread: float, count: int) -> None:
    correction = after(noisy(level, spread, count))
    assert correction.ratio == pytest.approx(level, rel=0.03)
    assert expected(MODEL, correction).seconds(WORK) == pytest.approx(level * PREDICTED_S, rel=0.03)


def test_the_first_iterations_are_averaged() -> None:
    assert after([1.2]).ratio == pytest.approx(1.2)
    assert after([1.2, 1.0]).ratio == pytest.approx(1.1)
    assert after([1.2, 1.0, 1.1]).ratio == pytest.approx(1.1)
    assert (Correction(), after([1.0]).observed) == (Correction(1.0, 0.05, 1.1, 0), 1)


def test_an_iteration_of_exactly_the_planned_time_is_not_slow() -> None:
    known = Correction(margin=1.0, observed=100)
    assert after([1.0], known).margin == 1.0
    assert after([1.001], known).margin > 1.0


def test_a_change_of_speed_is_learned() -> None:
    before = after(noisy(1.0, 0.02, 300))
    assert after(noisy(1.5, 0.02, 80), before).ratio == pytest.approx(1.5, rel=0.03)


def test_slow_steps_are_planned_for_without_changing_the_speed() -> None:
    before = after(noisy(1.0, 0.02, 300))
    rough = after(
        [ratio * (4.0 if number % 50 == 0 else 1.0) for number, ratio in enumerate(noisy(1.0, 0.02, 600))]
    )
    planned = corrected(MODEL, rough)
    assert planned.slow_chance == pytest.approx(0.02, rel=0.3)
    assert planned.deadline_margin == 0.0
    assert planned.scale * (1 + planned.slow_excess) == pytest.approx(4.0 * rough.ratio, rel=0.05)
    assert rough.ratio == pytest.approx(before.ratio, rel=0.02)


def test_rare_slow_steps_are_not_planned_for() -> None:
    calm = after([*noisy(1.0, 0.02, 300), 4.0, *noisy(1.0, 0.02, 300), 4.0])
    assert calm.tail.chance > 0.0
    assert corrected(MODEL, calm).slow_excess == 0.0


def test_slow_steps_that_the_margin_covers_need_no_more_time() -> None:
    rough = Correction(margin=1.5, tail=StepTail(0.02, 0.5))
    assert corrected(MODEL, rough).slow_excess == 0.0


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_with_the_margin_of_deadlines_one_iteration_in_five_hundred_is_longer(spread: float) -> None:
    correction = after(noisy(1.1, spread, 300))
    longer = 0
    for ratio in noisy(1.1, spread, 4000, seed=2):
        planned = corrected(MODEL, correction)
        longer += ratio * PREDICTED_S > planned.seconds(WORK) * (1 + planned.deadline_margin)
        correction = after([ratio], correction)
    assert longer / 4000 < 0.002


def test_there_is_no_margin_of_deadlines_before_the_scatter_is_known_and_never_a_large_one() -> None:
    assert corrected(MODEL, after(noisy(1.0, 0.03, 19))).deadline_margin == 0.0
    assert corrected(MODEL, after(noisy(1.0, 0.03, 20))).deadline_margin > 0.0
    assert corrected(MODEL, after(noisy(1.0, 0.16, 400))).deadline_margin == MOST_DEADLINE_MARGIN


@pytest.mark.parametrize("stall", [2.0, 10.0, 1000.0])
def test_one_stall_changes_the_model_little(stall: float) -> None:
    before = after(noisy(1.0, 0.02, 300))
    assert after([stall], before).ratio == pytest.approx(before.ratio, rel=0.01)


def test_a_first_iteration_that_stalls_is_forgotten_soon() -> None:
    assert after([20.0, *noisy(1.0, 0.02, 40)]).ratio == pytest.approx(1.0, rel=0.03)


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.05])
def test_one_iteration_in_forty_is_longer_than_planned(spread: float) -> None:
    correction = after(noisy(1.1, spread, 300))
    longer = 0
    for ratio in noisy(1.1, spread, 4000, seed=2):
        longer += ratio * PREDICTED_S > corrected(MODEL, correction).seconds(WORK)
        correction = after([ratio], correction)
    assert 0.015 < longer / 4000 < 0.035


def test_a_steadier_engine_is_planned_with_less_margin() -> None:
    calm, rough = (after(noisy(1.0, spread, 1000)).margin for spread in (0.01, 0.05))
    assert 1.0 < calm < 1.03
    assert rough > 1.05


def test_a_margin_ends_with_the_disturbance_that_caused_it() -> None:
    rough = after(noisy(1.0, 0.3, 500))
    assert rough.margin > 1.2
    assert after(noisy(1.0, 0.02, 120), rough).margin < 1.1


def test_error_is_the_mean_relative_error() -> None:
    assert after([0.9, 1.1] * 500).error == pytest.approx(0.1, rel=0.1)


@given(st.lists(st.floats(1e-6, 1e6), max_size=60))
def test_every_history_gives_a_usable_model(ratios: list[float]) -> None:
    correction = after(ratios)
    planned = corrected(MODEL, correction)
    assert 0 < planned.scale < inf
    assert planned.scale >= expected(MODEL, correction).scale
    assert 1.0 <= correction.margin <= MOST_MARGIN
    assert correction.observed == len(ratios)


def test_a_stall_counts_as_an_error_of_its_whole_time() -> None:
    assert after([1000.0]).error == pytest.approx(0.05 + 0.05 * (1.0 - 0.05))
    assert after([1.6]).error == pytest.approx(0.05 + 0.05 * (0.6 - 0.05))


def test_an_empty_iteration_is_not_learned() -> None:
    assert observe(Correction(), MODEL, BatchWork(0), 0.5) == Correction()


@pytest.mark.parametrize("seconds", [0.0, -1.0, nan, inf])
def test_an_impossible_duration_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="an iteration of 500 tokens cannot take"):
        observe(Correction(), MODEL, WORK, seconds)


@pytest.mark.parametrize("apply", [expected, corrected])
def test_a_correction_multiplies_an_earlier_scale_of_the_model(
    apply: Callable[..., object],
) -> None:
    twice = expected(MODEL, Correction(ratio=2.0))
    assert apply(twice, Correction(ratio=1.5)) == apply(MODEL, Correction(ratio=3.0))


def test_a_disturbance_is_forgotten_while_the_engine_is_idle() -> None:
    slow = Correction(ratio=4.0, margin=1.5, observed=100, tail=StepTail(0.02, 3.0))
    rested_once = rested(slow, REST_HALF_LIFE_S)
    assert rested_once.ratio == pytest.approx(2.0)
    assert rested_once.margin == pytest.approx(1.3)
    assert rested_once.tail.chance == pytest.approx(0.01)
    assert rested(slow, 60 * REST_HALF_LIFE_S).ratio == pytest.approx(1.0)


@given(ratio=st.floats(0.1, 10), first_s=st.floats(0, 100), second_s=st.floats(0, 100))
def test_two_idle_times_count_as_one_of_their_sum(ratio: float, first_s: float, second_s: float) -> None:
    correction = Correction(ratio=ratio)
    twice = rested(rested(correction, first_s), second_s)
    assert twice.ratio == pytest.approx(rested(correction, first_s + second_s).ratio)
