"""Finds vLLM's best token budget on a trace, because the demo's baseline must run at its best.

Each replica of the pool runs in virtual time with exact model and lengths, and requests are distributed in
turn.

    python bench/vllm_budget.py -f examples/demo-pool.yaml --trace examples/azure-excerpt.csv.gz
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from penstock_cli.replay.schedule import Schedule
from penstock_cli.simulate.fleet import SimulationOptions, fleet_of
from penstock_cli.simulate.run import arrivals
from penstock_core.domain.replica_view import Limits
from penstock_pool import load_pool
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.simulation import Arrival, Fleet, LengthKnowledge, simulate

BUDGETS_TOKENS = (256, 384, 512, 640, 768, 1024, 2048, 8192)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-f", "--file", type=Path, default=Path("examples/demo-pool.yaml"))
    parser.add_argument("--trace", type=Path, default=Path("examples/azure-excerpt.csv.gz"))
    options = parser.parse_args()
    conditions = SimulationOptions(truth=TruthKind.EXACT, lengths=LengthKnowledge.KNOWN)
    fleet = replace(fleet_of(load_pool(options.file), options.file, conditions), policy="vllm")
    trace = list(arrivals(Schedule(options.trace)))
    print(f"{'budget, tokens':>14}  {'attained, %':>11}")
    for budget_tokens in BUDGETS_TOKENS:
        print(f"{budget_tokens:>14}  {100 * attained(fleet, trace, budget_tokens):>11.1f}")


def attained(fleet: Fleet, trace: Sequence[Arrival], budget_tokens: int) -> float:
    """Return the share of the trace's requests that meet every target with this budget."""
    limits = Limits(budget_tokens, fleet.limits.running)
    outcomes = list(simulate(replace(fleet, limits=limits), trace, seed=0))
    return sum(outcome.met for outcome in outcomes) / len(outcomes)


if __name__ == "__main__":
    main()
