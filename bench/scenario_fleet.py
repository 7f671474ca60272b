"""One replica as a scenario has it, for programs that look closer than `penstock simulate` does."""

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import Scenario
from penstock_simulator.simulation import Fleet, LengthKnowledge


def fleet_of(workload: Scenario, policy: str, lengths: LengthKnowledge, truth: TruthKind) -> Fleet:
    """Its model, memory, tiers, limits and drafter under this policy."""
    return Fleet(
        policy,
        time_model(workload.time_model),
        workload.kv_tokens,
        workload.tiers,
        next(iter(workload.tiers)),
        limits=workload.limits,
        truth=truth,
        lengths=lengths,
        max_output_tokens=workload.max_output_tokens,
        speculation=workload.speculation,
    )
