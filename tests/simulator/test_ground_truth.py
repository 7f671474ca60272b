"""The engine's truth: near the planner's belief, never equal to it, and the same for the same seed."""

from collections.abc import Iterator
from random import Random
from statistics import fmean, pstdev

import pytest
from penstock_core.timing.builtin_models import BUILTINS, UnknownTimeModel, kv_cache_tokens, time_model
from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk
from penstock_simulator.engine_timing.ground_truth import TruthKind, ground_truth, noiseless
from penstock_simulator.engine_timing.kernel_times import kernel_times, measured
from penstock_simulator.engine_timing.noise import TimingNoise

MEASURED = [name for name in BUILTINS if measured(name)]
DECODES = BatchShape(decodes=64, context_tokens=64 * 1000)


def batches(name: str, count: int) -> Iterator[BatchShape]:
    """Iterations as serving makes them: none to 256 decodes, beside up to 2,048 tokens of prefill."""
    draw = Random(name)
    for _ in range(count):
        decodes = draw.choice([0, draw.randint(1, 32), draw.randint(1, 256)])
        context = min(decodes * draw.randint(100, 2000), kv_cache_tokens(name))
        tokens = [draw.randint(1, 1024) for _ in range(draw.randint(0 if decodes else 1, 2))]
        chunks = tuple(Chunk(n, draw.choice([0, draw.randint(0, 3000)])) for n in tokens)
        yield BatchShape(chunks, decodes, context)


@pytest.mark.parametrize("name", BUILTINS)
def test_a_planner_starts_within_a_tenth_of_the_truth(name: str) -> None:
    model, truth = time_model(name), noiseless(name)
    errors = [model.seconds(shape.work()) / truth(shape) - 1 for shape in batches(name, 500)]
    assert 0.005 < fmean(abs(error) for error in errors) < 0.10


@pytest.mark.parametrize("name", BUILTINS)
def test_a_partial_tile_costs_almost_a_whole_one(name: str) -> None:
    """Where compute binds, one row past a tile costs far more than the next row does."""
    truth = noiseless(name)

    def prefill_s(tokens: int) -> float:
        return truth(BatchShape((Chunk(tokens, 0),)))

    assert prefill_s(1537) - prefill_s(1536) > 5 * (prefill_s(1538) - prefill_s(1537))


@pytest.mark.parametrize("name", MEASURED)
def test_work_never_makes_an_iteration_shorter(name: str) -> None:
    truth = noiseless(name)
    contexts = [truth(BatchShape(decodes=48, context_tokens=48 * n)) for n in (100, 1000, 3000, 50_000)]
    computed = [truth(BatchShape((Chunk(512, n),))) for n in (0, 512, 2000, 7000, 15_000, 40_000)]
    assert contexts == sorted(contexts)
    assert computed == sorted(computed)


def test_durations_equal_the_tables_at_their_points() -> None:
    times = kernel_times("llama-3-8b-a100")
    batch = BatchShape(decodes=64, context_tokens=64 * 1024)
    dense_ms = times.tokens_ms[times.tokens.index(64)]
    attention_ms = times.decode_ms[times.decode_batches.index(64)][times.decode_contexts.index(1024)]
    expected_ms = dense_ms + times.rows_ms[times.rows.index(64)] + attention_ms + times.overhead_ms
    assert times.seconds(batch) == pytest.approx(expected_ms / 1e3)


def test_a_batch_beyond_the_tables_is_extrapolated_in_proportion() -> None:
    truth = noiseless("llama-3-8b-a100")
    once, twice = (truth(BatchShape((Chunk(8192, 0),) * n)) for n in (1, 2))
    assert twice == pytest.approx(2 * once, rel=0.01)


def test_chunks_of_a_prompt_have_the_attention_work_of_the_whole() -> None:
    truth = noiseless("llama-3-8b-a100")
    prompt_s, first_s, second_s, empty_s = (
        truth(BatchShape(chunks))
        for chunks in (
            (Chunk(2048, 0), Chunk(2048, 2048)),
            (Chunk(2048, 0), Chunk(2048, 0)),
            (Chunk(2048, 2048), Chunk(2048, 2048)),
            (Chunk(4096, 0),),
        )
    )
    assert prompt_s == pytest.approx((first_s + second_s) / 2)
    assert prompt_s == pytest.approx(empty_s, rel=0.001)


def test_drafter_steps_add_their_time() -> None:
    truth = noiseless("llama-3-8b-a100")
    plain, drafting = (truth(DECODES._replace(spec_steps=steps)) for steps in (0, 4))
    assert 0.002 < drafting - plain < 0.010


@pytest.mark.parametrize("name", ["llama-3-8b-h100", "slos-serve-opt-6.7b-a100"])
def test_an_empty_iteration_takes_no_time(name: str) -> None:
    assert noiseless(name)(BatchShape()) == 0.0


def test_the_same_seed_gives_the_same_run() -> None:
    def run(seed: int) -> list[float]:
        truth = ground_truth("llama-3-8b-a100", TruthKind.MEASURED, seed)
        return [truth.seconds(DECODES, at_s=step * 0.02) for step in range(100)]

    assert run(7) == run(7)
    assert run(7) != run(8)


def test_steps_vary_by_three_percent_around_the_kernels() -> None:
    truth = ground_truth("llama-3-8b-a100", TruthKind.MEASURED, seed=1)
    ratios = [truth.seconds(DECODES, at_s=0.0) / noiseless("llama-3-8b-a100")(DECODES) for _ in range(4000)]
    usual = [ratio for ratio in ratios if ratio < 1.15]
    assert 0.025 < pstdev(usual) / fmean(usual) < 0.035
    assert 1 <= len(ratios) - len(usual) < 20


def test_the_machine_drifts_over_minutes_and_not_within_a_second() -> None:
    disturbance = TimingNoise(seed=3)
    drift = [disturbance.drift(float(second)) for second in range(1200)]
    assert 0.03 < max(drift) - min(drift) <= 0.10
    assert abs(disturbance.drift(100.0) - disturbance.drift(101.0)) < 0.005


def test_an_exact_ground_truth_is_the_planners_model() -> None:
    model = time_model("llama-3-8b-a100")
    truth = ground_truth("llama-3-8b-a100", TruthKind.EXACT, seed=1)
    for shape in batches("llama-3-8b-a100", 100):
        assert truth.seconds(shape, at_s=5.0) == model.seconds(shape.work())


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(UnknownTimeModel):
        ground_truth("gpt-2-toaster", TruthKind.MEASURED, seed=1)
