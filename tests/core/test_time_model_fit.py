"""A fit recovers the model that made the times, states its accuracy, and never finds that work saves time."""

from math import exp, sin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.timing.builtin_models import BUILTINS
from penstock_core.timing.fit import NoDuration, Point, Quality, TooFewPoints, closest, fit, quality
from penstock_core.timing.time_model import BatchWork, Term, TimeModel, chunk_work

PROMPTS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
DECODES = tuple((batch, context) for batch in (1, 2, 4, 8, 16, 32, 64) for context in (128, 1024, 4096))


def works() -> list[BatchWork]:
    prefills = [BatchWork(tokens, 0, chunk_work(tokens, 0)) for tokens in PROMPTS]
    return prefills + [BatchWork(batch, batch * context) for batch, context in DECODES]


def points(model: TimeModel, noise: float = 0.0) -> list[Point]:
    """Noise without chance: a wave that no column follows."""
    return [
        Point(work, model.seconds(work) * exp(noise * sin(12.9898 * index)))
        for index, work in enumerate(works())
    ]


def of_model(model: TimeModel, measured: list[Point]) -> Quality:
    return quality([model.seconds(point.work) for point in measured], measured)


@pytest.mark.parametrize("name", sorted(BUILTINS))
def test_times_made_by_a_model_are_predicted_by_the_fit(name: str) -> None:
    true = BUILTINS[name].model
    found = fit("found", points(true))
    assert found.held_out.mean_error < 0.01
    assert found.seen.r_squared > 0.999


def test_two_lines_are_fitted_to_two_slopes() -> None:
    true = TimeModel("true", (Term(0.0, 0.010), Term(0.0001, 0.002)))
    found = closest("found", points(true))
    assert len(found.terms) == 2
    assert found.seconds(BatchWork(40)) == pytest.approx(0.010, rel=0.02)
    assert found.seconds(BatchWork(3000)) == pytest.approx(0.302, rel=0.02)


def test_one_line_is_fitted_to_one_slope() -> None:
    found = closest("found", points(TimeModel("true", (Term(0.0001, 0.005),)), noise=0.03))
    assert len(found.terms) == 1


def test_a_fit_recovers_the_cost_of_drafter_steps() -> None:
    true = TimeModel("true", (Term(0.0001, 0.005, 0.002),))
    drafted = [
        BatchWork(batch * (1 + steps), batch * 512, 0.0, steps) for batch in (1, 4, 16) for steps in (1, 2, 4)
    ]
    measured = points(true) + [Point(work, true.seconds(work)) for work in drafted]
    assert closest("found", measured).terms[0].spec_step_s == pytest.approx(0.002, rel=0.01)


def test_noise_is_reported_as_error_and_not_fitted() -> None:
    found = fit("found", points(BUILTINS["llama-3-8b-a100"].model, noise=0.05))
    assert 0.02 < found.held_out.mean_error < 0.06
    assert found.held_out.worst_error >= found.held_out.mean_error


def test_disturbed_readings_hardly_change_the_fit() -> None:
    true = BUILTINS["llama-3-8b-a100"].model
    disturbed = [
        Point(work, took_s * (2.5 if at % 6 == 3 else 1.0)) for at, (work, took_s) in enumerate(points(true))
    ]
    found = closest("found", disturbed)
    assert of_model(found, points(true)).mean_error < 0.02


def test_too_few_points_are_refused() -> None:
    same = [Point(BatchWork(8), 0.01)] * 100
    with pytest.raises(TooFewPoints, match="1 measured points of different size; a time model takes 6"):
        fit("found", same)


def test_six_different_iterations_are_enough() -> None:
    true = TimeModel("true", (Term(0.0001, 0.005),))
    found = fit(
        "found", [Point(BatchWork(tokens), true.seconds(BatchWork(tokens))) for tokens in range(1, 7)]
    )
    assert found.seen.mean_error == pytest.approx(0.0, abs=1e-9)
    with pytest.raises(TooFewPoints, match="5 measured points"):
        fit("found", [Point(BatchWork(tokens), 0.01) for tokens in (1, 2, 3, 4, 5, 5)])


def test_points_by_which_a_small_batch_takes_no_time_are_refused() -> None:
    """Noise may leave the context as the only cost; such a model would be invalid."""
    noisy = [Point(BatchWork(1, context), context * 1e-6) for context in range(100, 800, 100)]
    with pytest.raises(NoDuration, match="measure again on an idle machine"):
        fit("found", noisy)


def test_two_lines_need_three_points_each() -> None:
    true = TimeModel("true", (Term(0.0, 0.010), Term(0.001, -0.010)))
    measured = [
        Point(BatchWork(tokens), true.seconds(BatchWork(tokens))) for tokens in (1, 8, 16, 24, 32, 40)
    ]
    found = closest("found", measured)
    assert [term.fixed_s for term in found.terms] == pytest.approx([0.010, -0.010], abs=1e-4)
    assert len(closest("found", measured[:5]).terms) == 1


def test_quality_is_relative_error_and_the_share_of_variance_explained() -> None:
    measured = [Point(BatchWork(tokens), float(tokens)) for tokens in (1, 2, 3)]
    found = quality([1.0, 2.0, 4.0], measured)
    assert found.points == 3
    assert (found.worst_error, found.mean_error, found.r_squared) == pytest.approx((1 / 3, 1 / 9, 0.5))


def test_a_point_is_predicted_by_models_that_have_not_seen_it() -> None:
    """One of a kind: no other point has drafter steps, so no other point shows their duration."""
    true = TimeModel("true", (Term(0.0001, 0.005, 0.002),))
    drafting = BatchWork(8, 800, 0.0, 4)
    found = fit("found", [*points(true), Point(drafting, true.seconds(drafting))])
    assert found.seen.worst_error < 0.01
    assert found.held_out.worst_error > 0.3
    assert found.held_out.mean_error < 0.05


def test_constant_times_are_explained_fully_or_not_at_all() -> None:
    flat = [Point(BatchWork(tokens), 0.01) for tokens in range(1, 9)]
    assert of_model(TimeModel("exact", (Term(0.0, 0.01),)), flat).r_squared == 1.0
    assert of_model(TimeModel("off", (Term(0.0, 0.02),)), flat).r_squared == 0.0


@given(st.lists(st.floats(0.001, 10.0), min_size=30, max_size=30))
def test_more_work_never_takes_less_time(seconds: list[float]) -> None:
    model = closest("found", [Point(work, took_s) for work, took_s in zip(works(), seconds, strict=True)])
    for work in works():
        more = work._replace(context_tokens=work.context_tokens + 1000)
        assert model.seconds(more) >= model.seconds(work)
        longer = work._replace(tokens=work.tokens + 100, prefill_work=work.prefill_work + 1e5)
        assert model.seconds(longer) >= model.seconds(work)
