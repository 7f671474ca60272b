"""The annealer's latency predictor: its closed form, its fit, and its conversion of a time model."""

from dataclasses import replace
from random import Random

import pytest
from penstock_core.policies.annealing.latency import (
    QWEN_7B_2XV100,
    BatchLatency,
    Bilinear,
    Profiled,
    SingularFit,
    fit_latency,
    latency_of,
)
from penstock_core.timing.builtin_models import BUILTINS, time_model
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work


def summed_decode_s(latency: BatchLatency, batch: int, prompt: int, decode: int) -> float:
    return sum(latency.decode.at(float(batch), float(prompt + k)) for k in range(1, decode + 1))


@pytest.mark.parametrize("lengths", [(1, 1, 1), (4, 100, 37), (32, 2000, 1500), (2, 0, 10), (3, 50, 0)])
def test_the_closed_form_is_the_sum_over_tokens(lengths: tuple[int, int, int]) -> None:
    batch, prompt, decode = lengths
    closed_s = QWEN_7B_2XV100.decode_s(float(batch), float(prompt), float(decode))
    assert closed_s == pytest.approx(summed_decode_s(QWEN_7B_2XV100, batch, prompt, decode))


def test_the_papers_engine_takes_as_long_as_its_table_says() -> None:
    assert QWEN_7B_2XV100.prefill_s(2.0, 1000.0) == pytest.approx(0.2 + 0.0114 + 0.01 + 0.04367)
    assert QWEN_7B_2XV100.decode_s(1.0, 99.0, 1.0) == pytest.approx((0.02 + 0.275 + 0.088 + 15.85) / 1e3)


def profiled(latency: BatchLatency, seed: int, noise: float = 0.0) -> list[Profiled]:
    random = Random(seed)
    samples = []
    for _ in range(60):
        batch, prompt, decode = random.randint(1, 32), random.randint(100, 2000), random.randint(1, 500)
        times_s = (
            latency.prefill_s(float(batch), float(prompt)),
            latency.decode_s(float(batch), float(prompt), float(decode)),
        )
        measured_s = [time_s * (1 + noise * random.uniform(-1, 1)) for time_s in times_s]
        samples.append(Profiled(batch, prompt, decode, *measured_s))
    return samples


def coefficients(line: Bilinear) -> list[float]:
    return [line.batch_token_s, line.batch_s, line.token_s, line.fixed_s]


def test_a_fit_recovers_the_coefficients_that_were_profiled() -> None:
    fitted = fit_latency(profiled(QWEN_7B_2XV100, seed=1))
    assert coefficients(fitted.prefill) == pytest.approx(coefficients(QWEN_7B_2XV100.prefill))
    assert coefficients(fitted.decode) == pytest.approx(coefficients(QWEN_7B_2XV100.decode))


def test_a_fit_of_noisy_profiles_predicts_within_the_noise() -> None:
    fitted = fit_latency(profiled(QWEN_7B_2XV100, seed=2, noise=0.05))
    for sample in profiled(QWEN_7B_2XV100, seed=3):
        lengths = float(sample.batch), float(sample.prompt_tokens)
        whole_s = sample.prefill_s + sample.decode_s
        told_s = fitted.prefill_s(*lengths) + fitted.decode_s(*lengths, float(sample.decode_tokens))
        assert told_s == pytest.approx(whole_s, rel=0.05, abs=0.05)


@pytest.mark.parametrize(
    "alike",
    [
        [],
        [Profiled(4, 100, 10, 0.1, 0.2)] * 20,
        [Profiled(batch, 100, 10, 0.1 * batch, 0.2) for batch in range(1, 20)],
        [Profiled(batch, 10 * batch, 0, 0.1 * batch, 0.0) for batch in range(1, 20)],
    ],
    ids=["none", "one", "one-length", "no-answers"],
)
def test_profiles_with_too_little_variation_are_refused(alike: list[Profiled]) -> None:
    with pytest.raises(SingularFit, match=f"{len(alike)} profiled batches"):
        fit_latency(alike)


@pytest.mark.parametrize("name", BUILTINS)
def test_a_time_models_batches_are_predicted_within_a_tenth(name: str) -> None:
    model = time_model(name)
    latency = latency_of(model)
    for batch in (1, 4, 16, 32):
        for tokens in (400, 1200, 2000):
            prefill_s = model.seconds(BatchWork(batch * tokens, 0, batch * chunk_work(tokens, 0)))
            token_s = model.seconds(BatchWork(batch, batch * (tokens + 1)))
            assert latency.prefill_s(float(batch), float(tokens)) == pytest.approx(prefill_s, rel=0.12)
            assert latency.decode_s(float(batch), float(tokens), 1.0) == pytest.approx(token_s, rel=0.05)


def test_a_correction_scales_every_prediction_exactly() -> None:
    model = time_model("llama-3-8b-a100")
    assert latency_of(replace(model, scale=2.0)) == latency_of(model).scaled(2.0, 2.0)


def test_prefill_and_decodes_are_corrected_by_their_own_kinds() -> None:
    model = time_model("llama-3-8b-a100")
    by_kind = replace(model, scale=2.0, decode_scale=0.75, prefill_scale=1.5, mixed_scale=1.25)
    assert latency_of(by_kind) == latency_of(model).scaled(3.0, 1.5)


def test_an_engine_that_is_bilinear_is_predicted_exactly() -> None:
    """One line, and a decode that reads its context: off the grid as on it."""
    model = TimeModel("bilinear", (Term(1e-4, 0.020),), 2e-6, 0.0, 0.001, 1.5)
    latency = latency_of(model)
    for batch, tokens in ((1, 77), (3, 640), (20, 3000)):
        assert latency.prefill_s(float(batch), float(tokens)) == pytest.approx(
            model.seconds(BatchWork(batch * tokens)), rel=1e-4
        )
        assert latency.decode.at(float(batch), float(tokens)) == pytest.approx(
            model.seconds(BatchWork(batch, batch * tokens)), rel=1e-4
        )


def test_a_slower_engines_predictor_scales_every_prediction() -> None:
    twice = QWEN_7B_2XV100.scaled(2.0, 2.0)
    for phase in ("prefill", "decode"):
        slow, usual = coefficients(getattr(twice, phase)), coefficients(getattr(QWEN_7B_2XV100, phase))
        assert slow == [2 * value for value in usual]


def test_attention_of_every_prompt_counts() -> None:
    attending = TimeModel("attending", (Term(0.0, 0.020),), 0.0, 1e-9)
    latency = latency_of(attending)
    whole_s = latency.prefill_s(32.0, 2000.0) - latency.prefill_s(1.0, 2000.0)
    assert whole_s == pytest.approx(1e-9 * 31 * chunk_work(2000, 0), rel=0.15)
