"""One replica of a scenario, for benches that measure more than `penstock simulate`."""

from penstock_core.timing.builtin_models import time_model
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import Scenario
from penstock_simulator.simulation import Fleet, LengthKnowledge


def fleet_of(workload: Scenario, policy: str, lengths: LengthKnowledge, truth: TruthKind) -> Fleet:
    """Return a fleet of one replica with the scenario's model, memory, tiers, limits and drafter."""
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
