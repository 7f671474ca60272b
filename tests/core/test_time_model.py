"""The time model: its lines, its inverse, its attention terms."""

import math
from dataclasses import replace
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.builtin_models import BUILTINS
from penstock_core.timing.time_model import (
    UNBOUNDED_TOKENS,
    BatchWork,
    Term,
    TimeModel,
    chunk_work,
    from_json,
    to_json,
)

ROOFLINE = TimeModel("roofline", (Term(1e-4, 0.002), Term(1e-5, 0.010)))
MODELS = st.sampled_from([builtin.model for builtin in BUILTINS.values()])
SCALES = st.floats(0.3, 3.0)
BESIDE = st.builds(
    BatchWork,
    tokens=st.just(0),
    context_tokens=st.integers(0, 200_000),
    prefill_work=st.floats(0, 1e8),
    spec_steps=st.integers(0, 8),
)


def scaled(model: TimeModel, scale: float) -> TimeModel:
    return TimeModel(
        model.name, model.terms, model.context_token_s, model.prefill_work_s, model.overhead_s, scale
    )


def test_small_batches_wait_for_weights_and_large_ones_for_compute() -> None:
    assert ROOFLINE.seconds(BatchWork(1)) == pytest.approx(0.010 + 1e-5)
    assert ROOFLINE.seconds(BatchWork(1000)) == pytest.approx(0.102)


def test_an_empty_batch_takes_no_time() -> None:
    assert ROOFLINE.seconds(BatchWork(0)) == 0.0


def test_every_part_of_the_work_adds_its_time() -> None:
    model = TimeModel("all", (Term(1e-4, 0.002, 0.005),), 1e-7, 1e-9, 0.003, 2.0)
    assert model.seconds(BatchWork(10, 1000, 1e6, 2)) == pytest.approx(
        2 * (0.001 + 0.002 + 0.010 + 0.0001 + 0.001 + 0.003)
    )


KINDS = TimeModel(
    "kinds", (Term(1e-4, 0.002),), 1e-7, 1e-9, decode_scale=2.0, prefill_scale=3.0, mixed_scale=5.0
)


@pytest.mark.parametrize(
    ("work", "factor"),
    [
        (BatchWork(10, 1000), 2.0),
        (BatchWork(10), 3.0),
        (BatchWork(10, 0, 1e6), 3.0),
        (BatchWork(10, 1000, 1e6), 5.0),
    ],
)
def test_decodes_prefill_and_both_have_a_scale_of_their_own(work: BatchWork, factor: float) -> None:
    alike = replace(KINDS, decode_scale=1.0, prefill_scale=1.0, mixed_scale=1.0)
    assert KINDS.seconds(work) == pytest.approx(factor * alike.seconds(work))


@pytest.mark.parametrize("context_tokens", [0, 1000])
def test_tokens_within_uses_the_scale_of_iterations_with_prefill(context_tokens: int) -> None:
    time_s = KINDS.seconds(BatchWork(500, context_tokens, 1e6))
    assert KINDS.tokens_within(time_s, context_tokens, 1e6) == 500


@given(MODELS, SCALES, st.floats(0, 2), BESIDE)
def test_tokens_within_is_the_largest_number_that_fits(
    model: TimeModel, scale: float, time_s: float, beside: BatchWork
) -> None:
    model = scaled(model, scale)
    tokens = model.tokens_within(time_s, beside.context_tokens, beside.prefill_work, beside.spec_steps)
    assert tokens == 0 or model.seconds(beside._replace(tokens=tokens)) <= time_s + 1e-12
    assert model.seconds(beside._replace(tokens=tokens + 1)) > time_s - 1e-12


@given(MODELS, SCALES, st.integers(1, 20_000), st.integers(0, 200_000))
def test_tokens_within_is_the_inverse_of_seconds(
    model: TimeModel, scale: float, tokens: int, context: int
) -> None:
    model = scaled(model, scale)
    assert model.tokens_within(model.seconds(BatchWork(tokens, context)), context) == tokens


def test_a_time_without_bound_has_room_for_any_batch() -> None:
    assert ROOFLINE.tokens_within(inf) == UNBOUNDED_TOKENS


def test_a_flat_line_bounds_only_by_its_height() -> None:
    model = TimeModel("flat", (Term(1e-4, 0.0), Term(0.0, 0.010)))
    assert model.tokens_within(0.009) == 0
    assert model.tokens_within(0.020) == 200


def test_a_prompt_attends_to_half_of_its_square() -> None:
    assert chunk_work(8192, 0) == 8192**2 / 2


@given(st.integers(128, 4096), st.integers(128, 4096), st.integers(0, 8192))
def test_the_attention_work_of_chunks_adds_up_to_that_of_the_whole(
    first: int, second: int, computed: int
) -> None:
    whole = chunk_work(first + second, computed)
    assert chunk_work(first, computed) + chunk_work(second, computed + first) == whole


def test_a_short_chunk_costs_as_much_as_one_of_128_rows() -> None:
    assert chunk_work(1, 1000) == 128 * 1000.5


def test_prefill_seconds_are_those_of_the_prompt_in_one_batch() -> None:
    model = TimeModel("attention", (Term(1e-4, 0.002),), prefill_work_s=1e-9)
    assert model.prefill_seconds(1000) == pytest.approx(0.102 + 500_000e-9)


@given(MODELS)
def test_a_model_survives_json(model: TimeModel) -> None:
    assert from_json(to_json(model)) == model


def test_scales_by_kind_survive_json() -> None:
    assert from_json(to_json(KINDS)) == KINDS


@given(MODELS, st.dictionaries(st.text(), st.integers() | st.text() | st.none()))
def test_unknown_fields_of_a_later_versions_model_are_ignored(
    model: TimeModel, later: dict[str, Any]
) -> None:
    values = to_json(model)
    terms = [{**later, **term} for term in values["terms"]]
    assert from_json({**later, **values, "terms": terms}) == model


def test_a_model_of_an_earlier_version_has_defaults_for_missing_fields() -> None:
    output = {"name": "first", "terms": [{"token_s": 0.3, "fixed_s": -0.2}]}
    assert from_json(output) == TimeModel("first", (Term(0.3, -0.2),))


NO_DURATIONS: tuple[Any, ...] = (None, "1", [], -1.0, math.nan, math.inf)
SOUND = {"name": "m", "terms": [{"token_s": 0.1, "fixed_s": 0.2, "spec_step_s": 0.1}]}


@pytest.mark.parametrize(
    "output",
    [
        {},
        {"name": "m"},
        {"terms": SOUND["terms"]},
        SOUND | {"terms": None},
        SOUND | {"terms": []},
        SOUND | {"terms": [None]},
        SOUND | {"terms": [{"token_s": 0.1}]},
        SOUND | {"terms": [{"token_s": 0.0, "fixed_s": 0.0}]},
        *[SOUND | {name: value} for name in ("scale", "overhead_s") for value in NO_DURATIONS],
        *[SOUND | {"terms": [{"token_s": value, "fixed_s": 0.2}]} for value in NO_DURATIONS],
        *[SOUND | {"terms": [{"token_s": 0.1, "fixed_s": value}]} for value in (None, math.nan, math.inf)],
        *[SOUND | {f"{kind}scale": 0.0} for kind in ("", "decode_", "prefill_", "mixed_")],
        [],
        "terms",
    ],
    ids=repr,
)
def test_an_invalid_time_model_raises_value_error(output: Any) -> None:
    with pytest.raises(ValueError, match=r"missing|wrong type|negative or not a number|no time"):
        from_json(output)
