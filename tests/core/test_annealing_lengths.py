"""Gaussians of answer lengths: learning and sampling."""

from math import cos, isfinite, log, pi, sqrt
from random import Random
from statistics import mean, stdev

import pytest
from penstock_core.policies.annealing import lengths
from penstock_core.policies.annealing.lengths import AS_PREDICTED, Gaussian, Kinds, observed, standard_normal
from penstock_core.timing.learned_tiers import MOST_TIERS


def learned(values: list[float]) -> Gaussian:
    gaussian = Gaussian()
    for value in values:
        gaussian = gaussian.observe(value)
    return gaussian


def test_the_learned_gaussian_has_the_mean_and_deviation_of_its_samples() -> None:
    random = Random(1)
    values = [random.gauss(300, 80) for _ in range(500)]
    gaussian = learned(values)
    assert gaussian.count == 500
    assert gaussian.mean == pytest.approx(mean(values))
    assert gaussian.deviation == pytest.approx(stdev(values))


@pytest.mark.parametrize("values", [[], [7.0], [7.0, 7.0, 7.0]], ids=len)
def test_the_gaussian_has_no_spread_before_lengths_differ(values: list[float]) -> None:
    assert learned(values).deviation == 0.0
    assert learned(values).draw(seed=5) == (7.0 if values else 0.0)


def test_draws_follow_the_distribution_and_their_seed() -> None:
    gaussian = learned([200.0, 300.0, 400.0])
    draws = [gaussian.draw(seed) for seed in range(4000)]
    assert mean(draws) == pytest.approx(300, abs=5)
    assert stdev(draws) == pytest.approx(100, abs=5)
    assert draws == [gaussian.draw(seed) for seed in range(4000)]
    assert {gaussian.draw(seed, spread=0.0) for seed in range(9)} == {gaussian.mean}


def test_normal_numbers_are_normal() -> None:
    numbers = [standard_normal(seed) for seed in range(4000)]
    within = sum(abs(number) < 1 for number in numbers) / len(numbers)
    assert within == pytest.approx(0.683, abs=0.02)


def test_random_bits_are_those_of_splitmix64() -> None:
    """Its published outputs for the seed 0, and the normal numbers that two of them make."""
    assert [lengths._mixed(at) for at in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]
    radius, angle = sqrt(-2 * log(0xE220A8397B1DCDAF / 2**64)), 2 * pi * 0x6E789E6AA1B965F4 / 2**64
    assert standard_normal(0) == pytest.approx(radius * cos(angle), rel=1e-12)
    radius, angle = sqrt(-2 * log(0x06C45D188009454F / 2**64)), 2 * pi * 0xF88BB8A8724C81EC / 2**64
    assert standard_normal(1) == pytest.approx(radius * cos(angle), rel=1e-12)
    assert isfinite(standard_normal(10**30))


def test_half_the_spread_is_half_as_far_from_the_mean() -> None:
    gaussian = learned([200.0, 300.0, 400.0])
    assert gaussian.draw(7) == pytest.approx(300 + 100 * standard_normal(7))
    assert gaussian.draw(7, 0.5) == pytest.approx(300 + 50 * standard_normal(7))


def test_every_kind_of_task_has_its_own_gaussian_starting_from_predictions() -> None:
    kinds: Kinds = {}
    for share in (0.4, 0.6):
        kinds = observed(kinds, "chat", share)
    assert kinds["chat"] == AS_PREDICTED.observe(0.4).observe(0.6)
    assert observed(kinds, "code", 0.1)["chat"] == kinds["chat"]
    assert "code" not in kinds


def test_kinds_chosen_by_clients_take_bounded_memory() -> None:
    kinds: Kinds = {}
    for number in range(2 * MOST_TIERS):
        kinds = observed(observed(kinds, f"invented-{number}", 0.5), "chat", 0.5)
    assert len(kinds) == MOST_TIERS
    assert kinds["chat"].count == AS_PREDICTED.count + 2 * MOST_TIERS
