"""An engine of which one step in fifty takes four times as long: admitted requests keep their SLO."""

from collections.abc import Iterable, Iterator
from random import Random

import pytest
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing import correction
from penstock_core.timing.builtin_models import builtin
from penstock_simulator.engine_timing.disturbance import Disturbance, SlowSteps
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import (
    Arrival,
    FirstVerdict,
    Fleet,
    LengthKnowledge,
    SimulatedOutcome,
    simulate,
)

LLAMA = builtin("llama-3-8b-a100")
TIER = Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.05, judge=Judge.WINDOW))
NEVER = 2.0
"""A share of slow steps that no engine has."""


def arrivals(seed: int) -> Iterator[Arrival]:
    draw, at_s = Random(seed), 0.0
    for number in range(300):
        at_s += draw.expovariate(4.0)
        yield Arrival(f"{number:04d}", at_s, "chat", draw.randint(400, 2500), draw.randint(100, 500))


def admitted(seed: int, slow_steps: SlowSteps | None) -> list[SimulatedOutcome]:
    fleet = Fleet(
        "slos-serve",
        LLAMA.model,
        LLAMA.kv_cache_tokens,
        {"chat": TIER},
        "chat",
        truth=TruthKind.MEASURED,
        disturbance=Disturbance(slow_steps=slow_steps),
        lengths=LengthKnowledge.KNOWN,
    )
    ended = simulate(fleet, arrivals(seed), seed)
    return [outcome for outcome in ended if outcome.verdict is FirstVerdict.ADMITTED]


def admitted_of(seeds: Iterable[int], slow_steps: SlowSteps | None) -> list[SimulatedOutcome]:
    return [outcome for seed in seeds for outcome in admitted(seed, slow_steps)]


def missed(outcomes: list[SimulatedOutcome]) -> float:
    return sum(not outcome.met for outcome in outcomes) / len(outcomes)


def test_admitted_requests_survive_slow_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    slow_steps = SlowSteps(chance=0.02, factor=4.0)
    with_time = admitted_of((1, 2, 3), slow_steps)
    monkeypatch.setattr(correction, "LEAST_CHANCE", NEVER)
    without = admitted_of((1, 2, 3), slow_steps)
    assert missed(without) > 0.3
    assert missed(with_time) < 0.08
    assert len(with_time) > 50


def test_on_a_machine_of_constant_speed_the_same_requests_are_admitted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = admitted(2, None)
    monkeypatch.setattr(correction, "LEAST_CHANCE", NEVER)
    assert steady == admitted(2, None)
