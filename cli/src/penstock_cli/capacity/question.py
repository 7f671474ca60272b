"""The input of a search: a scenario, a policy, and the conditions that all searches of a run share."""

from dataclasses import dataclass

from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import LengthKnowledge


@dataclass(frozen=True, slots=True)
class SearchConditions:
    """Conditions that all searches of a run share.

    attainment: required share of requests that meet every target; a session counts once, with all its
        requests.
    lengths: answer lengths that planning uses. truth: kind of ground truth.
    seeds: number of samples of the scenario, whose requests are counted together.
    order: routing order of the routers.
    block_tokens: tokens per hash id of a scenario's recording; None: as recorded.
    sessions: recorded sessions in a sample, for each replica; None for the scenario's own number.
    """

    replicas: int
    attainment: float
    lengths: LengthKnowledge
    truth: TruthKind
    seeds: int
    order: str
    block_tokens: int | None = None
    sessions: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One search: the capacity of a policy in a scenario."""

    scenario: str
    policy: str
    conditions: SearchConditions
