"""What is asked: one scenario under one policy, and the conditions that all questions of a run share."""

from dataclasses import dataclass

from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge


@dataclass(frozen=True, slots=True)
class Conditions:
    """What is the same for every question of a run.

    attainment: share of all requests (of a session, all its requests together) that keep every target.
    lengths: what planning knows of answers. truth: what iterations take.
    seeds: samples of the scenario whose requests are counted together.
    order: in which routers try replicas.
    """

    replicas: int
    attainment: float
    lengths: LengthKnowledge
    truth: TruthKind
    seeds: int
    order: str


@dataclass(frozen=True, slots=True)
class Question:
    """How much can this policy carry in this scenario?"""

    scenario: str
    policy: str
    conditions: Conditions
