"""Measures the share of admitted requests that meet their SLO under slos-serve, near capacity and at 3 times.

    .venv/bin/python bench/kept_slos.py [--scenarios S,S] [--seeds N]

One replica in virtual time, each scenario at a rate near its capacity and at three times that rate: without
uncertainty (known lengths, exact ground truth; without and with speculation), with each source of uncertainty
alone (predicted lengths, or measured times), and as in production (predicted lengths, measured ground truth).
Attainment is over all requests; the other share is over admitted ones. Requests served best effort that met
their targets count as attained, not as admitted.
"""

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import FirstVerdict, LengthKnowledge, SimulatedOutcome, simulate
from scenario_fleet import fleet_of

NEAR_CAPACITY_RPS = {
    "chatbot": 7.0,
    "coder": 2.0,
    "summarizer": 4.3,
    "toolllm": 0.27,
    "reasoning": 0.33,
    "mixed": 4.6,
}
OVERLOAD = 3.0
MOST_REQUESTS = 1500


class Terms(NamedTuple):
    """The lengths and ground truth of a run, and whether the engine speculates."""

    lengths: LengthKnowledge
    truth: TruthKind
    speculates: bool


TERMS = {
    "known, exact, no drafts": Terms(LengthKnowledge.KNOWN, TruthKind.EXACT, speculates=False),
    "known, exact": Terms(LengthKnowledge.KNOWN, TruthKind.EXACT, speculates=True),
    "known, measured": Terms(LengthKnowledge.KNOWN, TruthKind.MEASURED, speculates=True),
    "predicted, exact": Terms(LengthKnowledge.PREDICTED, TruthKind.EXACT, speculates=True),
    "predicted, measured": Terms(LengthKnowledge.PREDICTED, TruthKind.MEASURED, speculates=True),
}


def outcomes(name: str, rate_rps: float, terms: Terms, seed: int) -> Iterator[SimulatedOutcome]:
    workload = scenario(name)
    if not terms.speculates:
        workload = replace(workload, speculation=None)
    fleet = fleet_of(workload, "slos-serve", terms.lengths, terms.truth)
    requests = islice(arrivals(workload, rate_rps, seed), MOST_REQUESTS)
    return simulate(fleet, requests, seed)


class SloSetting(NamedTuple):
    """A row of the table."""

    scenario: str
    terms: str
    rate_rps: float


class RunCounts(NamedTuple):
    """Counts of one run of a setting."""

    ended: int
    met: int
    admitted: int
    broken: int


def sample(setting: SloSetting, seed: int) -> RunCounts:
    ended = list(outcomes(setting.scenario, setting.rate_rps, TERMS[setting.terms], seed))
    admitted = [outcome for outcome in ended if outcome.verdict is FirstVerdict.ADMITTED]
    broken = sum(not outcome.met for outcome in admitted)
    return RunCounts(len(ended), sum(outcome.met for outcome in ended), len(admitted), broken)


def settings(scenarios: list[str]) -> Iterator[SloSetting]:
    for name, terms in TERMS.items():
        for scenario_name in scenarios:
            if terms.speculates or scenario(scenario_name).speculation is not None:
                for factor in (1.0, OVERLOAD):
                    yield SloSetting(scenario_name, name, NEAR_CAPACITY_RPS[scenario_name] * factor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(NEAR_CAPACITY_RPS), help="comma separated")
    parser.add_argument("--seeds", type=int, default=1, help="samples of each (default 1)")
    options = parser.parse_args()
    print(f"{'':24} {'scenario':>10} {'req/s':>6} {'attained':>9} {'admitted':>9} {'broken':>7} {'kept':>8}")
    with ProcessPoolExecutor() as pool:
        rows = list(settings(options.scenarios.split(",")))
        running = [[pool.submit(sample, row, seed) for seed in range(options.seeds)] for row in rows]
        for row, samples in zip(rows, running, strict=True):
            ended, met, admitted, broken = map(sum, zip(*[one.result() for one in samples], strict=True))
            figures = f"{met / ended:>9.3f} {admitted:>9} {broken:>7} {1 - broken / admitted:>8.2%}"
            print(f"{row.terms:24} {row.scenario:>10} {row.rate_rps:>6.2f} {figures}", flush=True)


if __name__ == "__main__":
    main()
