"""Measures how many admitted requests meet their SLO on a machine that changes its speed.

    .venv/bin/python bench/disturbances.py [--scenarios S,S] [--disturbances D,D] [--seeds N] [--first-seed N]
        [--seconds N] [--processes N]

One replica in virtual time, each scenario of the catalogue at a rate near its capacity, with predicted
lengths and measured ground truth, as in production. Five machines:

- steady: no disturbance beyond the ground truth's noise and drift. Attainment of all requests at this rate is
  the proxy for capacity.
- slow-down: every iteration takes twice as long for a minute. The bench judges all requests admitted from 5 s
  after its start on, including the recovery, and separately those admitted while it lasts.
- slow steps: one iteration in fifty takes four times as long. The bench judges the requests admitted from 5 s
  after the start on; before, hardly any slow step was seen. The last column has all admitted requests.
- kinds: prompts take 1.5 times as long as by the time model and decodes 0.7 times, as on a CPU; fast-prefill:
  0.7 and 1.5 times. All admitted requests are judged.

Constants are chosen on seeds from 50 on (`--first-seed 50`), figures are reported on those from 0 on.
"""

import argparse
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import reduce
from itertools import product, takewhile
from math import inf
from typing import NamedTuple

from kept_slos import NEAR_CAPACITY_RPS
from penstock_simulator.engine_timing.disturbance import Disturbance, KindFactors, SlowSteps, SpeedChange
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import FirstVerdict, LengthKnowledge, SimulatedOutcome, simulate
from scenario_fleet import fleet_of

RATES_RPS = {**NEAR_CAPACITY_RPS, "arxiv": 2.6, "mooncake": 0.58, "servegen-reasoning": 2.8}
SLOW_FROM_S, SLOW_UNTIL_S, ARRIVALS_END_S = 180.0, 240.0, 360.0
SETTLED_S = 5.0
"""Seconds after the start of a disturbance from which requests are judged."""

JUDGED_FROM_S = {"slow-down": SLOW_FROM_S + SETTLED_S, "slow-steps": SETTLED_S}

DISTURBANCES = {
    "steady": Disturbance(),
    "slow-down": Disturbance(speed_changes=(SpeedChange(SLOW_FROM_S, SLOW_UNTIL_S, 2.0),)),
    "slow-steps": Disturbance(slow_steps=SlowSteps(chance=1 / 50, factor=4.0)),
    "kinds": Disturbance(kinds=KindFactors(decode=0.7, prefill=1.5)),
    "fast-prefill": Disturbance(kinds=KindFactors(decode=1.5, prefill=0.7)),
}


class SloCount(NamedTuple):
    """Requests admitted, and those of them that met their SLO."""

    admitted: int = 0
    met: int = 0

    def plus(self, other: "SloCount") -> "SloCount":
        return SloCount(self.admitted + other.admitted, self.met + other.met)

    def __str__(self) -> str:
        return f"{self.met / self.admitted:>7.2%} of {self.admitted:>5}" if self.admitted else f"{'-':>16}"


class DisturbanceCounts(NamedTuple):
    """Counts of one run. judged: admitted requests that the goal covers. slow: those while disturbed."""

    ended: int
    met: int
    judged: SloCount
    slow: SloCount

    def plus(self, other: "DisturbanceCounts") -> "DisturbanceCounts":
        counts = self.judged.plus(other.judged), self.slow.plus(other.slow)
        return DisturbanceCounts(self.ended + other.ended, self.met + other.met, *counts)


def slo_count(outcomes: Iterable[SimulatedOutcome], from_s: float, until_s: float) -> SloCount:
    """Count requests by arrival, which admission follows within the latency of one hop."""
    admitted = [
        outcome
        for outcome in outcomes
        if outcome.verdict is FirstVerdict.ADMITTED and from_s <= outcome.arrival_s < until_s
    ]
    return SloCount(len(admitted), sum(outcome.met for outcome in admitted))


def sample(
    name: str, disturbance: str, seed: int, load: float, arrivals_end_s: float = ARRIVALS_END_S
) -> DisturbanceCounts:
    workload = scenario(name)
    fleet = fleet_of(workload, "slos-serve", LengthKnowledge.PREDICTED, TruthKind.MEASURED)
    fleet = replace(fleet, disturbance=DISTURBANCES[disturbance])
    arriving = arrivals(workload, RATES_RPS[name] * load, seed)
    requests = takewhile(lambda arrival: arrival.arrival_s < arrivals_end_s, arriving)
    ended = list(simulate(fleet, requests, seed))
    from_s = JUDGED_FROM_S.get(disturbance, 0.0)
    slow_from_s, slow_until_s = (from_s, SLOW_UNTIL_S) if disturbance == "slow-down" else (0.0, inf)
    met = sum(outcome.met for outcome in ended)
    return DisturbanceCounts(
        len(ended), met, slo_count(ended, from_s, inf), slo_count(ended, slow_from_s, slow_until_s)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(RATES_RPS), help="comma separated")
    parser.add_argument("--disturbances", default=",".join(DISTURBANCES), help="comma separated")
    parser.add_argument("--seeds", type=int, default=3, help="samples of each (default 3)")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first sample (default 0)")
    parser.add_argument("--load", type=float, default=1.0, help="multiple of each rate (default 1)")
    parser.add_argument(
        "--seconds", type=float, default=ARRIVALS_END_S, help="seconds of arrivals (default 360)"
    )
    parser.add_argument(
        "--processes", type=int, default=None, help="number of processes (default one per core)"
    )
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(f"{'':>11} {'scenario':>18} {'attained':>9} {'admitted that met':>17} {'all while disturbed':>19}")
    with ProcessPoolExecutor(options.processes) as pool:
        rows = list(product(options.disturbances.split(","), options.scenarios.split(",")))
        running = [
            [pool.submit(sample, name, how, seed, options.load, options.seconds) for seed in seeds]
            for how, name in rows
        ]
        for (how, name), samples in zip(rows, running, strict=True):
            whole = reduce(DisturbanceCounts.plus, [one.result() for one in samples])
            while_slow = whole.slow if how in JUDGED_FROM_S else ""
            attained = f"{whole.met / whole.ended:>9.4f}"
            print(f"{how:>11} {name:>18} {attained} {whole.judged!s:>17} {while_slow!s:>19}", flush=True)


if __name__ == "__main__":
    main()
