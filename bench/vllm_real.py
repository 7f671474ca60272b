"""Compares the baseline `vllm` with vLLM's own scheduler: attainment, and each request's times.

    make bench-vllm-real        # or, if vLLM is installed: .venv/bin/python bench/vllm_real.py [--requests N]

Each scenario runs on one replica with predicted lengths and measured ground truth, at several token budgets
and at rates around those at which attainment falls; if there is a drafter, also with fixed drafts. Exit code
1 if attainment differs by more than 2 points, or if any request's times differ without drafts.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from time import process_time
from typing import NamedTuple

from penstock_core.domain.replica_view import Limits
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.policies import VLLM_REAL, build
from penstock_simulator.real_vllm import VllmMissing
from penstock_simulator.scenarios import SCENARIOS, Scenario, arrivals
from penstock_simulator.simulation import Arrival, Fleet, SimulatedOutcome, simulate

RATES_RPS = {
    "chatbot": (3.0, 4.0, 5.0),
    "coder": (0.5, 1.5, 3.0),
    "summarizer": (2.0, 3.0, 4.0),
    "toolllm": (0.25, 0.5, 1.0),
    "reasoning": (0.2, 0.25, 0.3),
    "mixed": (3.0, 4.0, 5.0),
    "arxiv": (1.5, 2.0, 3.0),
    "mooncake": (0.1, 0.2, 0.4),
    "servegen-reasoning": (0.25, 0.5, 1.0),
}
BUDGETS_TOKENS = (512, 2048, 8192)
FIXED_DRAFTS = 3
MOST_POINTS = 2.0
MOST_OUTPUT_TOKENS = 150_000
"""Most answer tokens of a case, because long reasoning answers take long to simulate."""


class Case(NamedTuple):
    """One replica under one load. drafts: tokens drafted for a decode in every step; 0 for none."""

    scenario: Scenario
    budget_tokens: int
    drafts: int
    rate_rps: float


class Comparison(NamedTuple):
    """Results of both policies. attained: percent. apart: number of requests with different times."""

    case: Case
    vllm: float
    vllm_real: float
    apart: int
    requests: int

    @property
    def agrees(self) -> bool:
        within = abs(self.vllm - self.vllm_real) <= MOST_POINTS
        return within and (self.apart == 0 or self.case.drafts > 0)


def cases(budgets_tokens: Sequence[int], middle_only: bool) -> Iterator[Case]:
    for name, rates_rps in RATES_RPS.items():
        scenario = SCENARIOS[name]
        for drafts in (0, FIXED_DRAFTS) if scenario.speculation else (0,):
            for budget_tokens in budgets_tokens:
                for rate_rps in rates_rps[1:2] if middle_only else rates_rps:
                    yield Case(scenario, budget_tokens, drafts, rate_rps)


def comparison(case: Case, most_requests: int) -> Comparison:
    requests = list(_first(arrivals(case.scenario, case.rate_rps, seed=0), most_requests))
    ours, theirs = served(case, "vllm", requests), served(case, VLLM_REAL, requests)
    apart = sum(ours[name] != theirs[name] for name in ours)
    return Comparison(case, attained(ours.values()), attained(theirs.values()), apart, len(requests))


def _first(sample: Iterable[Arrival], most_requests: int) -> Iterator[Arrival]:
    output_tokens = 0
    for arrival in islice(sample, most_requests):
        yield arrival
        output_tokens += arrival.output_tokens
        if output_tokens >= MOST_OUTPUT_TOKENS:
            return


def served(case: Case, policy: str, requests: Sequence[Arrival]) -> dict[str, SimulatedOutcome]:
    workload = case.scenario
    drafter = workload.speculation
    fleet = Fleet(
        policy=policy,
        model=time_model(workload.time_model),
        kv_tokens=workload.kv_tokens,
        tiers=workload.tiers,
        default_tier=next(iter(workload.tiers)),
        limits=Limits(case.budget_tokens, workload.limits.running),
        max_output_tokens=workload.max_output_tokens,
        speculation=replace(drafter, max_tokens=case.drafts) if drafter and case.drafts else None,
    )
    return {outcome.id: outcome for outcome in simulate(fleet, requests, seed=0)}


def attained(outcomes: Iterable[SimulatedOutcome]) -> float:
    met = [outcome.met for outcome in outcomes]
    return 100 * sum(met) / len(met)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=150, help="most requests of each case (default 150)")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS_TOKENS)), help="token budgets")
    parser.add_argument("--middle", action="store_true", help="only the middle one of each three rates")
    options = parser.parse_args()
    try:
        build(VLLM_REAL)
    except VllmMissing as missing:
        print(missing, file=sys.stderr)
        return 2
    budgets_tokens = [int(tokens) for tokens in options.budgets.split(",")]
    return compare(list(cases(budgets_tokens, options.middle)), options.requests)


def compare(compared: Sequence[Case], most_requests: int) -> int:
    began_s = process_time()
    print("| scenario | drafts | tokens a step | requests/s | `vllm` % | `vllm-real` % | times differ |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    comparisons = []
    for number, case in enumerate(compared, start=1):
        result = comparison(case, most_requests)
        comparisons.append(result)
        print(
            f"| {case.scenario.name} | {case.drafts} | {case.budget_tokens} | {case.rate_rps:g} "
            f"| {result.vllm:.1f} | {result.vllm_real:.1f} | {result.apart} of {result.requests} |",
            flush=True,
        )
        print(f"{number} of {len(compared)}, {process_time() - began_s:.0f} s", file=sys.stderr)
    print(f"\n{conclusion(comparisons)}")
    return 0 if all(result.agrees for result in comparisons) else 1


def conclusion(comparisons: Sequence[Comparison]) -> str:
    plain = [result for result in comparisons if not result.case.drafts]
    most = max(abs(result.vllm - result.vllm_real) for result in comparisons)
    apart, of = sum(result.apart for result in plain), sum(result.requests for result in plain)
    return (
        f"Without drafts {apart} of {of} requests had other times under `vllm` than under vLLM itself. "
        f"With and without, attainment differs by {most:.2f} points at most."
    )


if __name__ == "__main__":
    sys.exit(main())
