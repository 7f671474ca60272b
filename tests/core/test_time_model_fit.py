"""Fitting a time model: recovers what made the samples, through noise and stalls."""

from math import exp, inf, nan
from random import Random
from statistics import fmean

import pytest
from penstock_core.builtin_time_models import BUILTINS, time_model
from penstock_core.time_model import BatchWork, Term, TimeModel, chunk_work
from penstock_core.time_model_fit import (
    DegenerateSamples,
    ImpossibleSample,
    Sample,
    TooFewSamples,
    UnfitSamples,
    fidelity,
    fit_time_model,
)


def works(count: int, seed: int) -> list[BatchWork]:
    """Iterations as serving makes them: decodes, beside prefill chunks or not."""
    draw = Random(seed)
    found = []
    for _ in range(count):
        decodes = draw.choice([0, draw.randint(1, 32), draw.randint(1, 256)])
        chunk = 0 if decodes and draw.random() < 0.4 else round(2 ** draw.uniform(4, 12))
        work = chunk_work(chunk, draw.choice([0, draw.randint(0, 3000)])) if chunk else 0.0
        found.append(BatchWork(decodes + chunk, decodes * draw.randint(50, 1500), work, draw.randint(0, 4)))
    return found


def measured(model: TimeModel, count: int, seed: int, stalls: float = 0.0) -> list[Sample]:
    draw = Random(seed)

    def ratio() -> float:
        return exp(draw.gauss(0, 0.03)) * (draw.uniform(1.5, 6) if draw.random() < stalls else 1.0)

    return [Sample(work, model.seconds(work) * ratio()) for work in works(count, seed)]


def error(fitted: TimeModel, truth: TimeModel) -> float:
    """Mean relative error on iterations that neither noise nor fitting has touched."""
    return fmean(abs(fitted.seconds(work) / truth.seconds(work) - 1) for work in works(400, seed=99))


@pytest.mark.parametrize("name", BUILTINS)
def test_every_builtin_is_recovered_from_noisy_samples(name: str) -> None:
    truth = time_model(name)
    fit = fit_time_model(name, measured(truth, 600, seed=1))
    assert error(fit.model, truth) < 0.01
    assert fit.model.name == name
    assert fit.fidelity.r2 > 0.98
    assert fit.fidelity.error < 0.04


@pytest.mark.parametrize("name", ["llama-3-8b-a100", "slos-serve-opt-13b-2xa100"])
def test_stalls_do_not_bend_the_model(name: str) -> None:
    truth = time_model(name)
    assert error(fit_time_model(name, measured(truth, 600, seed=2, stalls=0.05)).model, truth) < 0.015


def test_two_lines_are_found_where_there_are_two() -> None:
    truth = TimeModel("two", (Term(1e-4, 0.002), Term(1e-5, 0.030)))
    terms = fit_time_model("two", measured(truth, 600, seed=3)).model.terms
    slopes = sorted(term.token_s for term in terms)
    assert slopes[-1] == pytest.approx(1e-4, rel=0.03)
    assert max(term.fixed_s for term in terms) == pytest.approx(0.030, rel=0.03)


def test_an_engine_that_runs_full_batches_nearly_always_can_be_fitted() -> None:
    truth = TimeModel("full", (Term(1e-4, 0.020),))
    works_seen = [BatchWork(2048)] * 180 + [BatchWork(n) for n in range(10, 50)]
    model = fit_time_model("full", [Sample(work, truth.seconds(work)) for work in works_seen]).model
    assert model.seconds(BatchWork(1000)) == pytest.approx(truth.seconds(BatchWork(1000)), rel=0.01)


def test_one_line_is_kept_where_two_are_no_better() -> None:
    truth = TimeModel("one", (Term(1e-4, 0.020),))
    assert len(fit_time_model("one", measured(truth, 600, seed=4)).model.terms) == 1


def test_no_slope_is_ever_below_zero() -> None:
    """Long contexts that happen to come with short iterations are noise, not a discount."""
    draw = Random(1)
    samples = [
        Sample(BatchWork(n, context_tokens=10_000 - n, prefill_work=1e6), 0.010 + 2e-5 * n)
        for n in (draw.randint(1, 4000) for _ in range(200))
    ]
    model = fit_time_model("odd", samples).model
    assert model.context_token_s >= 0
    assert model.prefill_work_s >= 0
    assert all(term.token_s >= 0 and term.spec_step_s >= 0 for term in model.terms)
    assert error_on(model, samples) < 0.01


def error_on(model: TimeModel, samples: list[Sample]) -> float:
    return fidelity(model, samples).error


def test_fidelity_is_of_samples_the_fit_has_not_seen() -> None:
    samples = measured(time_model("llama-3-8b-a100"), 200, seed=5)
    fit = fit_time_model("held out", samples)
    assert fit.fidelity == fidelity(fit.model, samples[::5])
    assert fit.fidelity.samples == 40


def test_fidelity_of_samples_that_do_not_vary_explains_nothing() -> None:
    model = TimeModel("flat", (Term(1e-4, 0.0),))
    assert fidelity(model, [Sample(BatchWork(100), 0.01)] * 3).r2 == 0.0


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(TooFewSamples, match="39 samples, at least 40 are needed"):
        fit_time_model("few", measured(time_model("llama-3-8b-a100"), 39, seed=6))


@pytest.mark.parametrize("impossible", [Sample(BatchWork(10), s) for s in (0.0, -1.0, nan, inf)])
def test_an_impossible_sample_is_named(impossible: Sample) -> None:
    samples = [*measured(time_model("llama-3-8b-a100"), 60, seed=7), impossible]
    with pytest.raises(ImpossibleSample, match="sample 60: 10 tokens in"):
        fit_time_model("impossible", samples)


def test_a_sample_without_tokens_is_named() -> None:
    with pytest.raises(ImpossibleSample, match="sample 0: 0 tokens"):
        fit_time_model("empty", [Sample(BatchWork(0), 0.01)] * 50)


DEGENERATE = {
    "always the same": [Sample(BatchWork(64), 0.020)] * 100,
    "faster by more": [Sample(BatchWork(n), 0.5 - n / 1e4) for n in range(1, 200)],
}


@pytest.mark.parametrize("samples", DEGENERATE.values(), ids=DEGENERATE)
def test_samples_that_tell_no_time_per_token_are_refused(samples: list[Sample]) -> None:
    with pytest.raises(DegenerateSamples, match="samples must span small and large batches"):
        fit_time_model("degenerate", samples)


def test_all_refusals_are_of_one_kind() -> None:
    assert issubclass(TooFewSamples, UnfitSamples)
    assert issubclass(ImpossibleSample, UnfitSamples)
    assert issubclass(DegenerateSamples, UnfitSamples)
