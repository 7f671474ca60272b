"""Disturbances of the ground truth: when they begin and end, how often steps are slow, and the seed."""

from dataclasses import dataclass
from math import inf, nan

import pytest
from penstock_core.timing.builtin_models import builtin
from penstock_simulator.engine_timing.batch_shape import BatchShape, Chunk
from penstock_simulator.engine_timing.disturbance import (
    Disturbance,
    KindFactors,
    SlowSteps,
    SpeedChange,
    disturbed,
)
from penstock_simulator.engine_timing.ground_truth import ExactTruth, TruthKind
from penstock_simulator.simulation.fleet import Fleet
from penstock_simulator.simulation.iteration_timer import iteration_timer

DECODES = BatchShape(decodes=8, context_tokens=8000)
TRUTH_S = 0.03


@dataclass(frozen=True)
class Constant:
    """Every iteration takes as long."""

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        return TRUTH_S


def durations(disturbance: Disturbance, seed: int = 0, count: int = 5000) -> list[float]:
    truth = disturbed(Constant(), disturbance, seed)
    return [truth.seconds(DECODES, at_s / 10) for at_s in range(count)]


def test_the_default_disturbance_changes_no_duration() -> None:
    truth = Constant()
    assert disturbed(truth, Disturbance(), 0) is truth


@pytest.mark.parametrize(("at_s", "factor"), [(9.9, 1.0), (10.0, 2.0), (19.9, 2.0), (20.0, 1.0)])
def test_a_change_of_speed_starts_and_ends(at_s: float, factor: float) -> None:
    truth = disturbed(Constant(), Disturbance((SpeedChange(10.0, 20.0, 2.0),)), 0)
    assert truth.seconds(DECODES, at_s) == factor * TRUTH_S


def test_changes_that_overlap_multiply() -> None:
    truth = disturbed(Constant(), Disturbance((SpeedChange(0.0, inf, 2.0), SpeedChange(5.0, 6.0, 0.5))), 0)
    assert [truth.seconds(DECODES, at_s) for at_s in (1.0, 5.5)] == [2 * TRUTH_S, TRUTH_S]


def test_one_step_in_fifty_is_slow() -> None:
    slow = [s for s in durations(Disturbance(slow_steps=SlowSteps(0.02, 4.0))) if s != TRUTH_S]
    assert set(slow) == {4 * TRUTH_S}
    assert len(slow) == pytest.approx(100, rel=0.3)


def test_the_seed_selects_the_slow_steps() -> None:
    steps = Disturbance(slow_steps=SlowSteps())
    assert durations(steps, 7) == durations(steps, 7)
    assert durations(steps, 7) != durations(steps, 8)


CHUNK_S = 0.05


@dataclass(frozen=True)
class PerPart:
    """Decodes take the constant, and each chunk adds as much."""

    def seconds(self, shape: BatchShape, at_s: float) -> float:
        return (TRUTH_S if shape.decodes else 0.0) + CHUNK_S * len(shape.chunks)


@pytest.mark.parametrize(
    ("shape", "seconds"),
    [
        (DECODES, 0.5 * TRUTH_S),
        (DECODES._replace(draft_tokens=16, spec_steps=2), 0.5 * TRUTH_S),
        (BatchShape((Chunk(300, 0),)), 3 * CHUNK_S),
        (DECODES._replace(chunks=(Chunk(6, 0), Chunk(18, 100))), 0.5 * TRUTH_S + 3 * 2 * CHUNK_S),
    ],
)
def test_the_errors_of_prefill_and_decode_are_separate(shape: BatchShape, seconds: float) -> None:
    truth = disturbed(PerPart(), Disturbance(kinds=KindFactors(decode=0.5, prefill=3.0)), 0)
    assert truth.seconds(shape, 0.0) == pytest.approx(seconds)


@pytest.mark.parametrize("factor", [0.0, -1.0, inf, nan])
def test_an_impossible_factor_is_refused(factor: float) -> None:
    with pytest.raises(ValueError, match="is not positive and finite"):
        SpeedChange(0.0, factor=factor)
    with pytest.raises(ValueError, match="is not positive and finite"):
        SlowSteps(factor=factor)
    with pytest.raises(ValueError, match="is not positive and finite"):
        KindFactors(decode=factor)
    with pytest.raises(ValueError, match="is not positive and finite"):
        KindFactors(prefill=factor)


@pytest.mark.parametrize("chance", [-0.1, 1.1, nan])
def test_a_chance_is_a_probability(chance: float) -> None:
    with pytest.raises(ValueError, match="is not within 0 and 1"):
        SlowSteps(chance=chance)


@pytest.mark.parametrize("kind", TruthKind)
def test_the_replicas_of_a_fleet_are_disturbed(kind: TruthKind) -> None:
    model = builtin("llama-3-8b-a100").model
    fleet = Fleet("slos-serve", model, 40_000, {}, "", truth=kind)
    calm_s = iteration_timer(fleet, 3).begin(DECODES, 0.0)
    doubled = Fleet(
        "slos-serve", model, 40_000, {}, "", truth=kind, disturbance=Disturbance((SpeedChange(0.0),))
    )
    assert iteration_timer(doubled, 3).begin(DECODES, 0.0) == pytest.approx(2 * calm_s)


def test_a_disturbance_does_not_change_the_noise() -> None:
    model = builtin("llama-3-8b-a100").model
    exact = disturbed(ExactTruth(model), Disturbance((SpeedChange(1.0, 2.0, 3.0),)), 0)
    assert exact.seconds(DECODES, 0.0) == ExactTruth(model).seconds(DECODES, 0.0)
