"""Repeated iterations have the same result as iterations planned one by one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, NamedTuple

import pytest
from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.builtin_models import time_model
from penstock_simulator import policies
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import Fleet, LengthKnowledge, SimulatedOutcome, simulate


@dataclass
class Counted:
    """A policy whose steps are counted, and repeated only if they may be."""

    policy: Policy[Any]
    may_stand: bool
    asked: int = 0

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        return self.policy.admit(view, new)

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        self.asked += 1
        step, memory = self.policy.step(view, memory)
        return (step if self.may_stand else replace(step, repeatable_blocks=None)), memory


class Load(NamedTuple):
    """kv_share: the used share of the scenario's memory."""

    policy: str
    scenario: str
    rate_rps: float
    order: str = "least-loaded"
    kv_share: float = 1.0

    def fleet(self, lengths: LengthKnowledge) -> Fleet:
        here = scenario(self.scenario)
        return Fleet(
            self.policy,
            time_model(here.time_model),
            int(here.kv_tokens * self.kv_share),
            here.tiers,
            next(iter(here.tiers)),
            replicas=2,
            limits=here.limits,
            truth=TruthKind.MEASURED,
            lengths=lengths,
            max_output_tokens=here.max_output_tokens,
            order=self.order,
            snapshot_age_s=0.1,
            prefix_caching=here.prefix_caching,
            block_tokens=here.block_tokens,
        )


def served(load: Load, lengths: LengthKnowledge, *, may_stand: bool) -> tuple[list[SimulatedOutcome], int]:
    """What became of every request, and how often a policy was asked for a step."""
    made: list[Counted] = []

    def build(policy: str, knobs: Knobs) -> Policy[Any]:
        made.append(Counted(policies.build(policy, knobs), may_stand))
        return made[-1]

    coming = islice(arrivals(scenario(load.scenario), load.rate_rps, seed=3), 60)
    outcomes = list(simulate(load.fleet(lengths), coming, 0, build))
    return outcomes, sum(one.asked for one in made)


@pytest.mark.parametrize("lengths", list(LengthKnowledge))
@pytest.mark.parametrize(
    "load",
    [
        Load("vllm", "chatbot", 4.0, "round-robin"),
        Load("vllm", "chatbot", 8.0, kv_share=0.2),
        Load("sjf", "toolllm", 0.5),
        Load("slos-serve", "toolllm", 0.5),
        Load("slos-serve", "servegen-reasoning", 2.0, "best-fit"),
        Load("slos-serve", "swe", 2.0, "prefix", kv_share=0.1),
        Load("vllm", "web", 2.0, "prefix", kv_share=0.05),
    ],
    ids=str,
)
def test_repeated_steps_give_the_same_result_with_fewer_policy_calls(
    load: Load, lengths: LengthKnowledge
) -> None:
    alone, all_steps = served(load, lengths, may_stand=False)
    gone_on, asked = served(load, lengths, may_stand=True)
    assert gone_on == alone
    assert asked < 0.9 * all_steps
