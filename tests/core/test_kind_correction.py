"""Correction by kind of iteration: decodes alone, prefill alone, both."""

from collections.abc import Iterable
from math import exp, inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.builtin_models import time_model
from penstock_core.timing.correction import (
    REST_HALF_LIFE_S,
    Correction,
    corrected,
    expected,
    observe,
    rested,
)
from penstock_core.timing.kind_correction import (
    KNOWN_STEPS,
    NEW_KINDS,
    STALE_STEPS,
    KindCorrection,
    Kinds,
    applied_ratio,
)
from penstock_core.timing.time_model import BatchWork, TimeModel

MODEL = time_model("llama-3-8b-a100")
DECODES = BatchWork(30, context_tokens=30_000)
PREFILL = BatchWork(600, prefill_work=180_000.0)
MIXED = BatchWork(400, context_tokens=30_000, prefill_work=70_000.0)
USUAL = [DECODES, DECODES, MIXED, DECODES, PREFILL]
ON_A_CPU = {DECODES: 0.7, PREFILL: 1.5, MIXED: 1.2}
"""Measured over predicted time where prompts cost more than fitted, and decodes less."""


def learned(works: Iterable[BatchWork], ratios: dict[BatchWork, float], start: Correction) -> Correction:
    """Return the correction after these iterations, whose durations are the model's times a ratio by kind."""
    for work in works:
        start = observe(start, MODEL, work, ratios[work] * MODEL.seconds(work))
    return start


def noisy(correction: Correction, ratios: dict[BatchWork, float], seed: int = 1) -> Correction:
    """After 1,000 iterations of all kinds with a noise of 3 %."""
    draw = Random(seed)
    for _ in range(200):
        for work in USUAL:
            seconds = ratios[work] * MODEL.seconds(work) * exp(draw.gauss(0.0, 0.03))
            correction = observe(correction, MODEL, work, seconds)
    return correction


def ratio(model: TimeModel, work: BatchWork) -> float:
    return model.seconds(work) / MODEL.seconds(work)


def test_each_kind_is_predicted_at_its_own_speed() -> None:
    mean = expected(MODEL, noisy(Correction(), ON_A_CPU))
    assert {work: ratio(mean, work) for work in ON_A_CPU} == pytest.approx(ON_A_CPU, rel=0.05)


def test_each_kind_is_planned_with_a_margin_of_its_own_noise() -> None:
    planned = corrected(MODEL, noisy(Correction(), ON_A_CPU))
    for work, level in ON_A_CPU.items():
        assert 1.02 * level < ratio(planned, work) < 1.2 * level


def test_a_difference_between_kinds_is_not_a_slow_step() -> None:
    far = {DECODES: 0.5, PREFILL: 2.0, MIXED: 1.5}
    correction = learned(100 * USUAL, far, Correction())
    assert corrected(MODEL, correction).slow_excess == 0.0


def test_a_slow_step_of_a_slow_kind_counts_as_slow() -> None:
    usual = noisy(Correction(), ON_A_CPU)
    slow = usual
    for _ in range(20):
        slow = learned([PREFILL], {PREFILL: 6.0}, learned(30 * USUAL, ON_A_CPU, slow))
    assert usual.tail.chance == 0.0
    assert corrected(MODEL, slow).slow_excess > 1.0


def test_the_first_iterations_of_a_kind_are_not_slow_steps() -> None:
    correction = learned(200 * [DECODES], ON_A_CPU, Correction())
    for _ in range(KNOWN_STEPS):
        correction = learned([PREFILL, DECODES], ON_A_CPU, correction)
        assert correction.tail.chance == 0.0
    assert ratio(expected(MODEL, correction), PREFILL) == pytest.approx(1.5, rel=0.1)


def test_prefill_after_many_decodes_is_planned_as_before_them() -> None:
    busy = noisy(Correction(), ON_A_CPU)
    later = learned(200 * [DECODES], ON_A_CPU, busy)
    assert ratio(expected(MODEL, later), PREFILL) == pytest.approx(1.5, rel=0.1)
    assert ratio(expected(MODEL, later), DECODES) == pytest.approx(0.7, rel=0.03)


def test_a_change_of_speed_seen_in_decodes_alone_applies_to_prefill() -> None:
    slower = learned(100 * [DECODES], {DECODES: 1.4}, noisy(Correction(), ON_A_CPU))
    assert ratio(expected(MODEL, slower), DECODES) == pytest.approx(1.4, rel=0.05)
    assert ratio(expected(MODEL, slower), PREFILL) == pytest.approx(3.0, rel=0.15)


def test_an_engine_that_computes_one_kind_has_the_common_correction_alone() -> None:
    correction = learned(300 * [DECODES], {DECODES: 1.7}, Correction())
    assert correction.ratio == pytest.approx(1.7)
    assert expected(MODEL, correction).decode_scale == 1.0
    assert corrected(MODEL, correction).decode_scale == 1.0


def test_kinds_that_differ_little_have_one_correction() -> None:
    correction = noisy(Correction(), {DECODES: 1.0, PREFILL: 0.97, MIXED: 1.04})
    planned = corrected(MODEL, correction)
    assert (planned.decode_scale, planned.prefill_scale, planned.mixed_scale) == (1.0, 1.0, 1.0)


@pytest.mark.parametrize(("ratio", "used"), [(1.0, 1.0), (1.09, 1.0), (0.92, 1.0), (1.3, 1.3), (0.8, 0.8)])
def test_a_difference_counts_from_a_tenth_and_fully_from_a_fifth(ratio: float, used: float) -> None:
    assert applied_ratio(ratio) == used


@given(st.floats(0.1, 10.0), st.floats(1.0, 1.001))
def test_the_counted_difference_is_continuous_and_at_most_the_real_one(ratio: float, growth: float) -> None:
    assert 0.0 <= applied_ratio(ratio * growth) / applied_ratio(ratio) - 1.0 <= 0.01
    assert min(ratio, 1.0) <= applied_ratio(ratio) <= max(ratio, 1.0)


def test_a_kind_that_does_not_occur_fades() -> None:
    kinds = Kinds(prefill=KindCorrection(ratio=2.0, margin=1.5))
    for _ in range(int(STALE_STEPS)):
        kinds = kinds.after(DECODES, 1.0)
    assert kinds.prefill.ratio == pytest.approx(2.0 ** exp(-1), rel=0.01)
    assert kinds.prefill.margin == pytest.approx(1.1 + 0.4 * exp(-1), rel=0.01)


def test_kinds_are_forgotten_while_the_engine_is_idle() -> None:
    busy = Correction(kinds=Kinds(decode=KindCorrection(ratio=0.25), mixed=KindCorrection(margin=1.5)))
    once = rested(busy, REST_HALF_LIFE_S).kinds
    assert once.decode.ratio == pytest.approx(0.5)
    assert once.mixed.margin == pytest.approx(1.3)
    assert rested(busy, 0.0) == busy


def test_a_model_scaled_by_kind_keeps_its_scales() -> None:
    half = TimeModel(
        MODEL.name, MODEL.terms, decode_scale=0.5, prefill_scale=2.0, mixed_scale=3.0, overhead_s=0.01
    )
    slow = Correction(kinds=NEW_KINDS._replace(decode=KindCorrection(ratio=2.0)))
    scaled = expected(half, slow)
    assert (scaled.decode_scale, scaled.prefill_scale, scaled.mixed_scale) == (1.0, 2.0, 3.0)


@given(st.lists(st.tuples(st.sampled_from([DECODES, PREFILL, MIXED]), st.floats(1e-6, 1e6)), max_size=60))
def test_every_history_of_kinds_gives_a_usable_model(steps: list[tuple[BatchWork, float]]) -> None:
    correction = Correction()
    for work, times in steps:
        correction = observe(correction, MODEL, work, times * MODEL.seconds(work))
    for model in (expected(MODEL, correction), corrected(MODEL, correction)):
        for work in (DECODES, PREFILL, MIXED):
            assert 0.0 < model.seconds(work) < inf
    assert sum(kind.observed for kind in correction.kinds) == len(steps)
