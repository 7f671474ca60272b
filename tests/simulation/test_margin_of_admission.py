"""Admission plans with a wider margin than the engine while admitted requests miss their SLO."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.builtin_models import builtin
from penstock_simulator import policies
from penstock_simulator.engine_timing.disturbance import Disturbance, SlowSteps
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, FirstVerdict, Fleet, LengthKnowledge, simulate

LLAMA = builtin("llama-3-8b-a100")
TIER = Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.05, judge=Judge.WINDOW))
STALLS = Disturbance(slow_steps=SlowSteps(chance=0.05, factor=30.0))


@dataclass
class Watched:
    """A policy that notes the speeds it plans with: at admission, and the engine's last one at each."""

    policy: Policy[Any]
    engine_scale: float = 0.0
    wider: list[float] = field(default_factory=list)

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        if self.engine_scale:
            self.wider.append(view.model.scale / self.engine_scale)
        return self.policy.admit(view, new)

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        self.engine_scale = view.model.scale
        return self.policy.step(view, memory)


def arrivals(count: int = 150) -> Iterator[Arrival]:
    draw, at_s = Random(3), 0.0
    for number in range(count):
        at_s += draw.expovariate(4.0)
        yield Arrival(f"{number:04d}", at_s, "chat", draw.randint(100, 1500), draw.randint(20, 120))


def run(truth: TruthKind, disturbance: Disturbance) -> tuple[int, Watched]:
    """Return the admitted requests that missed, and the policy's views."""
    watched: list[Watched] = []

    def build(name: str, knobs: Knobs) -> Policy[Any]:
        watched.append(Watched(policies.build(name, knobs)))
        return watched[-1]

    fleet = Fleet(
        "slos-serve",
        LLAMA.model,
        LLAMA.kv_cache_tokens,
        {"chat": TIER},
        "chat",
        truth=truth,
        disturbance=disturbance,
        lengths=LengthKnowledge.KNOWN,
    )
    ended = list(simulate(fleet, arrivals(), 3, build))
    admitted = [outcome for outcome in ended if outcome.verdict is FirstVerdict.ADMITTED]
    return sum(not outcome.met for outcome in admitted), watched[0]


def test_admission_has_a_wider_margin_than_the_engine_after_misses() -> None:
    missed, watched = run(TruthKind.MEASURED, STALLS)
    assert missed > 0
    assert max(watched.wider) > 1.2


@pytest.mark.parametrize("disturbance", [Disturbance(), STALLS])
def test_an_exact_model_is_used_without_a_margin(disturbance: Disturbance) -> None:
    _, watched = run(TruthKind.EXACT, disturbance)
    assert set(watched.wider) == {1.0}
