"""Measures the planner's times in scenarios: every admission and every step of a replica.

    .venv/bin/python bench/planner_in_scenarios.py [--scenarios S,S] [--policies P,P] [--requests N]

One replica in virtual time, each scenario at a rate near its capacity and at three times that, predicted
lengths and measured truth. `bench/planner.py` measures the same calls at their largest sizes.
CPU milliseconds of one thread, with garbage collected as the processes do it.
"""

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from kept_slos import NEAR_CAPACITY_RPS, OVERLOAD
from penstock_core.domain.policy import Knobs, Policy, Step
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_runtime.serving import YOUNG_OBJECTS
from penstock_simulator import policies
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import LengthKnowledge, simulate
from scenario_fleet import fleet_of

Answer = TypeVar("Answer")


@dataclass
class TimedPolicy:
    """A policy whose calls are timed. most_new: candidates of the largest admission."""

    policy: Policy[Any]
    admissions_ms: list[float] = field(default_factory=list)
    steps_ms: list[float] = field(default_factory=list)
    most_new: int = 0

    def start(self) -> Any:
        return self.policy.start()

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        self.most_new = max(self.most_new, len(new))
        return _timed(self.admissions_ms, lambda: self.policy.admit(view, new))

    def step(self, view: ReplicaView, memory: Any) -> tuple[Step, Any]:
        return _timed(self.steps_ms, lambda: self.policy.step(view, memory))


def _timed(taken_ms: list[float], act: Callable[[], Answer]) -> Answer:
    before_s = time.thread_time()
    answer = act()
    taken_ms.append((time.thread_time() - before_s) * 1e3)
    return answer


def measured(policy: str, name: str, rate_rps: float, requests: int) -> TimedPolicy:
    workload = scenario(name)
    fleet = fleet_of(workload, policy, LengthKnowledge.PREDICTED, TruthKind.MEASURED)
    made: list[TimedPolicy] = []

    def build(wanted: str, knobs: Knobs) -> Policy[Any]:
        made.append(TimedPolicy(policies.build(wanted, knobs)))
        return made[-1]

    for _ in simulate(fleet, islice(arrivals(workload, rate_rps, seed=0), requests), 0, build):
        pass
    (one,) = made
    return one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(NEAR_CAPACITY_RPS), help="comma separated")
    parser.add_argument("--policies", default="slos-serve", help="comma separated (default slos-serve)")
    parser.add_argument("--requests", type=int, default=1000, help="requests of each run (default 1000)")
    options = parser.parse_args()
    gc.set_threshold(YOUNG_OBJECTS)
    print(f"{'CPU ms per call':>34}{'admissions':>11}{'p50':>7}{'p99':>7}{'max':>7}{'most new':>9}", end="")
    print(f"{'steps':>9}{'p50':>7}{'p99':>7}{'max':>7}")
    measured("slos-serve", "coder", 2.0, 100)  # loads compiled code and warms caches
    gc.freeze()
    for policy in options.policies.split(","):
        for name in options.scenarios.split(","):
            for factor in (1.0, OVERLOAD):
                rate_rps = NEAR_CAPACITY_RPS[name] * factor
                found = measured(policy, name, rate_rps, options.requests)
                print(f"{policy:<12}{name:>12}{rate_rps:>8.2f}/s", end="")
                print(f"{_row(found.admissions_ms)}{found.most_new:>9}{_row(found.steps_ms)}", flush=True)


def _row(taken_ms: Sequence[float]) -> str:
    if not taken_ms:
        return f"{0:>9}"
    p50, p99, longest = (float(np.percentile(taken_ms, p)) for p in (50, 99, 100))
    return f"{len(taken_ms):>11}{p50:>7.2f}{p99:>7.2f}{longest:>7.2f}"


if __name__ == "__main__":
    main()
