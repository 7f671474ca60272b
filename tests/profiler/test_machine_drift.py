"""A machine's drift is separated from the duration of its probes."""

from math import sin
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_profiler.drift import NEIGHBOURS, slowdowns

TAKES_S = {"small": 0.003, "middle": 0.010, "large": 0.2}


def readings(slowdown_at: list[float], noise: float = 0.0) -> list[tuple[str, float]]:
    """Probes in turn, with deterministic noise: a wave."""
    names = list(TAKES_S)
    return [
        (names[at % 3], TAKES_S[names[at % 3]] * slowdown * (1 + noise * sin(12.9898 * at)))
        for at, slowdown in enumerate(slowdown_at)
    ]


def test_readings_of_a_machine_of_constant_speed_are_unchanged() -> None:
    assert slowdowns(readings([1.0] * 60)) == pytest.approx([1.0] * 60)


def test_a_slow_period_is_corrected() -> None:
    slow = [1.0] * 40 + [1.8] * 20 + [1.0] * 40
    reported = readings(slow, noise=0.05)
    without_drift = [
        (name, seconds / slowdown)
        for (name, seconds), slowdown in zip(reported, slowdowns(reported), strict=True)
    ]
    for wanted, takes_s in TAKES_S.items():
        of_it = [seconds for name, seconds in without_drift if name == wanted]
        assert median(of_it) == pytest.approx(takes_s, rel=0.04)
        assert max(of_it[15:18]) < 1.3 * takes_s, "in the middle of the spell"


def test_a_single_stall_is_not_a_change_of_speed() -> None:
    reported = readings([1.0] * 60)
    stalled = [*reported[:30], (reported[30][0], 50 * reported[30][1]), *reported[31:]]
    assert slowdowns(stalled) == pytest.approx([1.0] * 60)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=80), st.floats(0.01, 100.0))
def test_the_unit_of_time_does_not_matter(slowdown_at: list[float], factor: float) -> None:
    reported = readings(slowdown_at)
    scaled = [(name, factor * seconds) for name, seconds in reported]
    assert slowdowns(scaled) == pytest.approx(slowdowns(reported))


@given(st.lists(st.sampled_from(list(TAKES_S)), min_size=1, max_size=40))
def test_probes_may_come_in_any_order(names: list[str]) -> None:
    assert slowdowns([(name, TAKES_S[name]) for name in names]) == pytest.approx([1.0] * len(names))


@pytest.mark.parametrize("first", [0, 30, 55])
def test_a_slow_period_is_detected_by_readings_most_of_whose_neighbours_are_in_it(first: int) -> None:
    spell = range(first, first + NEIGHBOURS + 1)
    reported = [("probe", 1.8 if at in spell else 1.0) for at in range(60)]
    for at, slowdown in enumerate(slowdowns(reported)):
        near = [seconds for _, seconds in reported[max(at - NEIGHBOURS, 0) : at + NEIGHBOURS + 1]]
        assert slowdown == pytest.approx(median(near))


def test_a_probe_read_only_in_a_slow_period_is_corrected() -> None:
    slowdown_at = [1.0] * 20 + [1.8] * 21 + [1.0] * 20
    rare = range(28, 28 + 2 * NEIGHBOURS + 1, 2)
    reported = [
        ("rare" if at in rare else "usual", 0.25 * slowdown) for at, slowdown in enumerate(slowdown_at)
    ]
    assert slowdowns(reported) == pytest.approx(slowdown_at)


def test_slowdowns_of_no_readings_are_empty() -> None:
    assert slowdowns([]) == []
