"""The benefit of each part of slos-serve: one part is removed at a time, on the same requests.

    .venv/bin/python bench/ablations.py [--only PART,PART] [--loads L,L] [--scenarios S,S] [--seeds N]

One replica in virtual time, predicted lengths, measured step times, in every scenario under four loads: near
its capacity, at three times that, in bursts (near capacity, but all requests of two seconds arrive together),
and with unequal values (at three times capacity every other request has a value of three). The bench prints
the change that each removal makes, in percentage points: of attainment (the value of requests that met every
target, as a share of all), and of the share of admitted requests that met their targets. Constants were
chosen on other seeds.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Any, NamedTuple

from penstock_core.policies.slos_serve import (
    admission,
    batch_formation,
    batch_plan,
    policy,
    price,
    promotion,
)
from penstock_core.policies.slos_serve.batch_plan import BatchingRule, rules
from penstock_core.policies.slos_serve.workload import AdmittedSet
from penstock_simulator.arrival import Arrival
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import FirstVerdict, Fleet, LengthKnowledge, simulate
from scenario_fleet import fleet_of

FIRST_SEED = 40
"""Samples before this one were used to choose constants or during design."""

NEAR_CAPACITY_RPS = {
    "chatbot": 7.0,
    "coder": 2.0,
    "summarizer": 4.1,
    "toolllm": 0.134,
    "reasoning": 0.275,
    "mixed": 4.3,
}
OVERLOAD = 3.0
BURST_S = 2.0
HIGH_VALUE = 3.0
HIGH = "-high"
"""Suffix of the tier of requests with a higher value."""


class Replacement(NamedTuple):
    """A module's attribute, and the value that replaces it."""

    module: Any
    name: str
    instead: Any


def _only(cost: price.Cost) -> Callable[..., bool]:
    """Return `price.affordable` limited to this cost."""
    affordable = price.affordable
    return lambda admitted, requested, *rest: requested is not cost or affordable(admitted, requested, *rest)


def _speculating(admitted: AdmittedSet) -> list[BatchingRule]:
    """Return the batching rules with speculation, if there are any; else all."""
    found = [*rules(admitted)]
    return [rule for rule in found if rule.speculation] or found


def _in_both(modules: Sequence[Any], name: str, instead: Any) -> list[Replacement]:
    return [Replacement(module, name, instead) for module in modules]


PARTS: Mapping[str, Sequence[Replacement]] = {
    "dynamic program (greedy instead)": _in_both(
        (admission, promotion), "propose", lambda *requested, **more: []
    ),
    "candidates tried beside its set": [Replacement(admission, "MOST_TRIED", 0)],
    "longer batches": [Replacement(batch_plan, "LENGTHS", (1.0,))],
    "plans without speculation": [
        Replacement(batch_plan, "rules", _speculating),
    ],
    "margin beside long answers": [
        Replacement(batch_plan, "MARGIN", 0.0),
    ],
    "decodes that wait": [Replacement(batch_plan, "_may_wait", lambda admitted: False)],
    "price of memory": [Replacement(price, "affordable", _only(price.work))],
    "price of time": [Replacement(price, "affordable", _only(price.memory))],
    "both prices": [Replacement(price, "affordable", lambda *requested: True)],
    "prices from the first request": [Replacement(price, "FEW_REQUESTS", 1)],
    "memory 4 instead of 9": [Replacement(price, "MEMORY_STEEPNESS", 4.0)],
    "time 2 instead of 4": [Replacement(price, "TIME_STEEPNESS", 2.0)],
    "best effort bounded by free memory": [
        Replacement(batch_formation, "_share_of_time", lambda held, plentiful, scarce: 1.0),
    ],
    "promotion": [Replacement(policy, "to_promote", lambda workload: None)],
}


class LoadPattern(NamedTuple):
    """A load: multiple of the rate near capacity, length of bursts, and whether values differ."""

    factor: float
    burst_s: float = 0.0
    values: bool = False


LOADS = {
    "near": LoadPattern(1.0),
    "3x": LoadPattern(OVERLOAD),
    "bursts": LoadPattern(1.0, BURST_S),
    "values": LoadPattern(OVERLOAD, 0.0, values=True),
}


class AblationTrial(NamedTuple):
    """A sample of a scenario under a load. without: the removed part; empty for none."""

    scenario: str
    load: str
    seed: int
    requests: int
    without: str


class Tally(NamedTuple):
    """Counts of a trial. arrived, met: total value."""

    arrived: float
    met: float
    admitted: int
    kept: int


def arrivals_of(trial: AblationTrial) -> Iterator[Arrival]:
    """Yield the requests of a trial."""
    load = LOADS[trial.load]
    rate_rps = NEAR_CAPACITY_RPS[trial.scenario] * load.factor
    sample = islice(arrivals(scenario(trial.scenario), rate_rps, trial.seed), trial.requests)
    for number, arrival in enumerate(sample):
        together_s = arrival.arrival_s // load.burst_s * load.burst_s if load.burst_s else arrival.arrival_s
        tier = arrival.tier + HIGH if load.values and number % 2 else arrival.tier
        yield arrival._replace(arrival_s=together_s, tier=tier)


def fleet_under(trial: AblationTrial) -> Fleet:
    """Return one replica of the scenario, with a copy of each tier that has a higher value."""
    fleet = fleet_of(scenario(trial.scenario), "slos-serve", LengthKnowledge.PREDICTED, TruthKind.MEASURED)
    more = {
        name + HIGH: replace(tier, name=name + HIGH, value=HIGH_VALUE * tier.value)
        for name, tier in fleet.tiers.items()
    }
    return replace(fleet, tiers={**fleet.tiers, **more})


def run(trial: AblationTrial) -> Tally:
    """Simulate a trial without its removed part."""
    removed = PARTS.get(trial.without, ())
    before = [getattr(part.module, part.name) for part in removed]
    for part in removed:
        setattr(part.module, part.name, part.instead)
    try:
        return _run(trial)
    finally:
        for part, value in zip(removed, before, strict=True):
            setattr(part.module, part.name, value)


def _run(trial: AblationTrial) -> Tally:
    fleet = fleet_under(trial)
    arrived = met = 0.0
    admitted = kept = 0
    for outcome in simulate(fleet, arrivals_of(trial), trial.seed):
        value = fleet.tiers[outcome.tier].value
        arrived += value
        met += value * outcome.met
        if outcome.verdict is FirstVerdict.ADMITTED:
            admitted += 1
            kept += outcome.met
    return Tally(arrived, met, admitted, kept)


def added(tallies: Sequence[Tally]) -> Tally:
    """Return the sum of the tallies of all samples."""
    return Tally(*[sum(column) for column in zip(*tallies, strict=True)])


def points(tally: Tally) -> tuple[float, float]:
    """Return attainment, and the share of admitted requests that met their targets, in percent."""
    return 100 * tally.met / tally.arrived, 100 * tally.kept / max(tally.admitted, 1)


def table(load: str, scenarios: Sequence[str], parts: Sequence[str], found: Callable[..., Tally]) -> str:
    """Return a Markdown table: a row for each part, two columns for each scenario."""
    base = {name: points(found(name, load, "")) for name in scenarios}
    lines = [f"| {load}: without | " + " | ".join(scenarios) + " | worst |"]
    lines.append("|---|" + "--:|" * (len(scenarios) + 1))
    lines.append("| nothing | " + " | ".join(f"{a:.1f}, {k:.2f}" for a, k in base.values()) + " | |")
    for part in parts:
        cells, worst = [], inf
        for name in scenarios:
            met, kept = points(found(name, load, part))
            gained, more_kept = met - base[name][0], kept - base[name][1]
            worst = min(worst, gained, more_kept)
            cells.append(f"{gained:+.1f}, {more_kept:+.2f}")
        lines.append(f"| {part} | {' | '.join(cells)} | {worst:+.1f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, comma separated (default all)")
    parser.add_argument("--loads", default=",".join(LOADS), help="comma separated (default all)")
    parser.add_argument("--scenarios", default=",".join(NEAR_CAPACITY_RPS), help="comma separated")
    parser.add_argument("--seeds", type=int, default=4, help="samples of each (default 4)")
    parser.add_argument("--requests", type=int, default=400, help="of each sample (default 400)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default 1)")
    options = parser.parse_args()
    parts, loads, scenarios = (of.split(",") for of in (options.only, options.loads, options.scenarios))
    seeds = range(FIRST_SEED, FIRST_SEED + options.seeds)
    print(f"{options.seeds} samples of {options.requests} requests; differences in points: attained, kept\n")
    with ProcessPoolExecutor(options.jobs) as pool:
        for load in loads:
            trials = [
                AblationTrial(name, load, seed, options.requests, part)
                for part in ("", *parts)
                for name in scenarios
                for seed in seeds
            ]
            tallies = dict(zip(trials, pool.map(run, trials), strict=True))

            def found(
                name: str, load: str, part: str, tallies: Mapping[AblationTrial, Tally] = tallies
            ) -> Tally:
                return added(
                    [tallies[AblationTrial(name, load, seed, options.requests, part)] for seed in seeds]
                )

            print(table(load, scenarios, parts, found), flush=True)
            print(flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
