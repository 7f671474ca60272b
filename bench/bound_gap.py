"""What stands between slos-serve and the bound: its share of it as one hardship after the other goes.

    .venv/bin/python bench/bound_gap.py [--scenarios S,S] [--relief R,R]

Each relief changes the scenario, so both are computed anew: the bound (`penstock_simulator.bounds`) and the
highest rate at which slos-serve keeps 90 % of all sessions whole; one replica, known lengths, exact truth,
one sample. Where the share rises with a relief, that hardship is what stood between.

  as it is      the scenario
  no bursts     the same requests at the times of a Poisson process
  patience      first tokens may take three times as long, so an iteration under way hardly matters
  both
  no drafts     the engine has no drafter, so nothing is left to luck
  no drafts or bursts
  memory        four times the KV cache
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import NamedTuple

from penstock_core.slo import Tier
from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds import bound, setting_of
from penstock_simulator.scenarios import Scenario, arrivals, scenario
from penstock_simulator.simulation import Lengths, simulate
from penstock_simulator.truth import TruthKind
from scenario_fleet import fleet_of

TARGET = 0.9
PATIENCE = 3.0
MEMORY = 4
START_RPS = {"chatbot": 7.0, "coder": 2.0, "summarizer": 4.3, "toolllm": 0.3, "reasoning": 0.34, "mixed": 4.7}
WITHIN = {"bound": 1.03, "slos-serve": 1.015}
"""A search ends when its bounds are this close."""


class Relief(NamedTuple):
    """What is made easier."""

    no_bursts: bool = False
    patience: float = 1.0
    memory: int = 1
    drafts: bool = True


RELIEFS = {
    "as it is": Relief(),
    "no bursts": Relief(no_bursts=True),
    "patience": Relief(patience=PATIENCE),
    "both": Relief(no_bursts=True, patience=PATIENCE),
    "no drafts": Relief(drafts=False),
    "no drafts or bursts": Relief(no_bursts=True, drafts=False),
    "memory": Relief(memory=MEMORY),
}


def eased(name: str, relief: Relief) -> Scenario:
    here = scenario(name)
    tiers = {tier.name: _patient(tier, relief.patience) for tier in here.tiers.values()}
    speculation = here.speculation if relief.drafts else None
    return replace(here, tiers=tiers, kv_tokens=here.kv_tokens * relief.memory, speculation=speculation)


def _patient(tier: Tier, factor: float) -> Tier:
    slo = tier.slo
    return replace(
        tier,
        slo=replace(
            slo,
            ttft_s=slo.ttft_s and slo.ttft_s * factor,
            ttft_slowdown=slo.ttft_slowdown and slo.ttft_slowdown * factor,
        ),
    )


def coming(here: Scenario, rate_rps: float, relief: Relief) -> Iterator[Arrival]:
    """Its requests; where bursts are taken away, whole sessions at times of a Poisson process."""
    recorded = arrivals(here, rate_rps, seed=0)
    if not relief.no_bursts:
        yield from recorded
        return
    random, now_s = Random(0), 0.0
    for _, together in groupby(recorded, key=lambda one: one.session or one.id):
        now_s += random.expovariate(rate_rps)
        for one in together:
            yield one._replace(arrival_s=now_s)


def bound_share(name: str, relief: Relief, rate_rps: float) -> float:
    here = eased(name, relief)
    return bound(coming(here, rate_rps, relief), setting_of(here))


def attained(name: str, relief: Relief, rate_rps: float) -> float:
    here = eased(name, relief)
    fleet = fleet_of(here, "slos-serve", Lengths.KNOWN, TruthKind.EXACT)
    kept: dict[str, bool] = {}
    for outcome in simulate(fleet, coming(here, rate_rps, relief), 0):
        session = outcome.session or outcome.id
        kept[session] = kept.get(session, True) and outcome.met
    return sum(kept.values()) / len(kept)


SHARES: dict[str, Callable[[str, Relief, float], float]] = {"bound": bound_share, "slos-serve": attained}


def capacity_rps(what: str, name: str, relief: Relief) -> float:
    """Highest rate found at which the target is reached."""
    share, within = SHARES[what], WITHIN[what]
    low, high, rate_rps = 0.0, 0.0, START_RPS[name]
    while not (low and high) or high > low * within:
        if share(name, relief, rate_rps) >= TARGET:
            low = rate_rps
        else:
            high = rate_rps
        rate_rps = (low * high) ** 0.5 if low and high else rate_rps * (1.5 if low else 1 / 1.5)
    return low


def names(text: str) -> Sequence[str]:
    return [name.strip() for name in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", type=names, default=["coder", "toolllm", "chatbot"])
    parser.add_argument("--relief", type=names, default=list(RELIEFS), help="comma separated (default all)")
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        rows = [(here, relief) for here in options.scenarios for relief in options.relief]
        searches = [
            [pool.submit(capacity_rps, what, here, RELIEFS[relief]) for what in SHARES]
            for here, relief in rows
        ]
        print(f"{'scenario':<12}{'relief':<20}{'bound req/s':>12}{'slos-serve':>12}{'share':>8}", flush=True)
        for (here, relief), (most, ours) in zip(rows, searches, strict=True):
            share = ours.result() / most.result()
            print(
                f"{here:<12}{relief:<20}{most.result():>12.3f}{ours.result():>12.3f}{share:>8.0%}", flush=True
            )


if __name__ == "__main__":
    main()
