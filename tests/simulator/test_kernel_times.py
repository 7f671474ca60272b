"""Durations from a table that can be followed by hand, and the noise around them."""

from dataclasses import replace
from math import exp, pi, sin
from random import Random

import pytest
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work
from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk
from penstock_simulator.engine_timing.ground_truth import ExactTruth, MeasuredTruth, tiled_seconds
from penstock_simulator.engine_timing.kernel_times import KernelTimes, _from_values, between
from penstock_simulator.engine_timing.noise import TimingNoise

TIMES = KernelTimes(
    tokens=(8, 16, 64),
    tokens_ms=(1.0, 2.0, 7.0),
    rows=(1, 11),
    rows_ms=(0.5, 1.5),
    decode_batches=(1, 4, 8),
    decode_contexts=(100, 200),
    decode_ms=((0.1, 0.3), (0.4, 0.8), (1.0, 3.0)),
    prompts=(10, 20),
    attention_pair_ms=(0.004, 0.002),
    attention_launch_ms=0.25,
    drafter_step_ms=0.75,
    overhead_ms=10.0,
)


def milliseconds(times: KernelTimes = TIMES, **shape: object) -> float:
    return 1e3 * times.seconds(BatchShape(**shape))  # type: ignore[arg-type]


def test_decodes_cost_their_tokens_their_rows_and_their_attention() -> None:
    assert milliseconds(decodes=1, context_tokens=100) == pytest.approx(1.0 + 0.5 + 0.1 + 10.0)
    assert milliseconds(decodes=4, context_tokens=800) == pytest.approx(1.0 + 0.8 + 0.8 + 10.0)
    assert milliseconds(decodes=8, context_tokens=1200) == pytest.approx(1.0 + 1.2 + 2.0 + 10.0)
    assert milliseconds(decodes=9, context_tokens=900) == pytest.approx(2.0 + 1.3 + 1.15 + 10.0)


def test_between_batches_attention_is_interpolated() -> None:
    assert milliseconds(decodes=2, context_tokens=200) == pytest.approx(1.0 + 0.6 + 0.2 + 10.0)
    assert milliseconds(decodes=6, context_tokens=900) == pytest.approx(1.0 + 1.0 + 1.3 + 10.0)


@pytest.mark.parametrize(
    ("decodes", "padded_ms"), [(8, 1.0), (9, 2.0), (16, 2.0), (17, 7.0), (64, 7.0), (128, 14.0)]
)
def test_tokens_are_padded_to_the_next_entry_and_extrapolated_beyond_the_last(
    decodes: int, padded_ms: float
) -> None:
    others = replace(TIMES, rows_ms=(0.0, 0.0), decode_ms=((0.0, 0.0),) * 3, overhead_ms=0.0)
    assert milliseconds(others, decodes=decodes, context_tokens=decodes) == pytest.approx(padded_ms)


def test_a_chunk_costs_the_difference_of_two_prompts_and_a_launch() -> None:
    plain_ms = 2.0 + 0.5 + 10.0
    assert milliseconds(chunks=(Chunk(10, 0),)) == pytest.approx(plain_ms + 0.25), "the first entry is free"
    assert milliseconds(chunks=(Chunk(10, 10),)) == pytest.approx(plain_ms + 0.25 + 0.002 * 400 / 2)
    assert milliseconds(chunks=(Chunk(15, 0),)) == pytest.approx(plain_ms + 0.25 + 0.003 * 225 / 2)
    far_ms = 0.002 * (40**2 - 30**2) / 2
    assert milliseconds(chunks=(Chunk(10, 30),)) == pytest.approx(plain_ms + 0.25 + far_ms)
    two_ms = 7.0 + 0.6 + 10.0 + 0.25 + 0.002 * 400 / 2
    assert milliseconds(chunks=(Chunk(20, 0), Chunk(10, 0))) == pytest.approx(two_ms)


def test_drafts_cost_tokens_rows_and_steps() -> None:
    drafting_ms = milliseconds(decodes=2, context_tokens=200, draft_tokens=5, spec_steps=3)
    assert drafting_ms == pytest.approx(1.0 + 1.1 + 0.2 + 3 * 0.75 + 10.0)
    assert milliseconds() == 0.0


def test_a_shape_counts_its_tokens_as_the_planners_terms() -> None:
    shape = BatchShape((Chunk(10, 30), Chunk(5, 0)), 2, 200, 4, 3)
    assert shape.tokens == 21
    assert shape.work() == BatchWork(21, 200, chunk_work(10, 30) + chunk_work(5, 0), 3)


@pytest.mark.parametrize(("x", "y"), [(1, 0.0), (2, 10.0), (3, 20.0), (4, 50.0), (5, 80.0), (6, 110.0)])
def test_values_are_extrapolated_at_both_ends(x: float, y: float) -> None:
    assert between([2, 3, 5], [10.0, 20.0, 80.0], x) == pytest.approx(y)


def test_the_launch_time_is_that_of_the_tables_shortest_prompt() -> None:
    fields = {
        name: getattr(TIMES, name) for name in KernelTimes.__slots__ if not name.startswith("attention")
    }
    times = _from_values(fields | {"prompts_ms": [0.25, 0.65]})
    assert times.attention_launch_ms == 0.25
    assert times.attention_pair_ms == pytest.approx([0.0, 2 * 0.4 / 400])


def test_a_model_without_tables_computes_whole_tiles() -> None:
    model = TimeModel("line", (Term(1e-3, 0.0),))

    def tokens(count: int) -> int:
        return round(1e3 * tiled_seconds(model, BatchShape((Chunk(count, 0),))))

    assert tokens(1280) == round(1280 * 0.92), "no part of a tile is unused"
    assert tokens(1280 + 64) == 1280 + 64, "half of one is"
    assert tokens(1281) == round(1281 * (1 + 0.08 * (2 * 127 / 128 - 1)))


def test_noise_is_drawn_in_a_fixed_order() -> None:
    noise, random = TimingNoise(3), Random(3)
    phases = [random.uniform(0, 2 * pi) for _ in range(3)]

    def drift(at_s: float) -> float:
        waves = zip((97.0, 263.0, 611.0), phases, strict=True)
        return 1 + 0.05 * sum(sin(2 * pi * at_s / period_s + phase) for period_s, phase in waves) / 3

    slow = 0
    for step in range(3000):
        usual = exp(random.gauss(0.0, 0.03))
        if random.random() < 0.001:
            usual, slow = usual * random.uniform(1.2, 2.0), slow + 1
        assert noise.factor(0.5 * step) == pytest.approx(usual * drift(0.5 * step))
    assert slow > 0
    assert noise.drift(40.0) == pytest.approx(drift(40.0))


def test_a_measured_ground_truth_is_kernel_time_multiplied_by_noise() -> None:
    truth, same = MeasuredTruth(TIMES.seconds, TimingNoise(5)), TimingNoise(5)
    shape = BatchShape(decodes=4, context_tokens=800)
    for step in range(5):
        assert truth.seconds(shape, 7.0 * step) == TIMES.seconds(shape) * same.factor(7.0 * step)
    model = TimeModel("line", (Term(1e-3, 0.5),))
    assert ExactTruth(model).seconds(shape, 9.0) == model.seconds(shape.work())
