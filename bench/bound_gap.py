"""The gap between slos-serve and the upper bound, and how it changes when one difficulty is removed.

    .venv/bin/python bench/bound_gap.py [--scenarios S,S] [--relief R,R] [--predicted]

Each relief changes the scenario, so both are computed again: the bound (`penstock_simulator.bounds`) and the
highest rate at which slos-serve meets the SLOs of 90 % of all sessions; one replica, known lengths, exact
truth (or predicted and measured), one sample. If the share rises when a difficulty is removed, that
difficulty caused a part of the gap.

  as it is      the scenario
  no bursts     the same requests at the times of a Poisson process
  patience      first tokens may take three times as long, so a running iteration hardly matters
  both
  no drafts     the engine has no drafter, so token counts are not random
  no drafts or bursts
  memory        four times the KV cache
  whole answers TPOT is judged over the whole answer, not in windows of ten: early tokens always count
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import groupby
from random import Random
from typing import NamedTuple

from penstock_core.domain.slo import Judge, Tier
from penstock_simulator.arrival import Arrival
from penstock_simulator.bounds import bound, bound_setting
from penstock_simulator.engine_timing.ground_truth import TruthKind
from penstock_simulator.scenarios import Scenario, arrivals, scenario
from penstock_simulator.simulation import LengthKnowledge, simulate
from scenario_fleet import fleet_of

TARGET = 0.9
PATIENCE = 3.0
MEMORY = 4
START_RPS = {"chatbot": 7.0, "coder": 2.0, "summarizer": 4.3, "toolllm": 0.3, "reasoning": 0.34, "mixed": 4.7}
BOUND_WITHIN, OURS_WITHIN = 1.03, 1.015
"""Ratio of the bounds at which a search ends."""


class Relief(NamedTuple):
    """A change that makes a scenario easier."""

    no_bursts: bool = False
    patience: float = 1.0
    memory: int = 1
    drafts: bool = True
    whole_answers: bool = False


RELIEFS = {
    "as it is": Relief(),
    "no bursts": Relief(no_bursts=True),
    "patience": Relief(patience=PATIENCE),
    "both": Relief(no_bursts=True, patience=PATIENCE),
    "no drafts": Relief(drafts=False),
    "no drafts or bursts": Relief(no_bursts=True, drafts=False),
    "memory": Relief(memory=MEMORY),
    "whole answers": Relief(whole_answers=True),
}


def with_relief(name: str, relief: Relief) -> Scenario:
    workload = scenario(name)
    tiers = {tier.name: _tier_with_relief(tier, relief) for tier in workload.tiers.values()}
    speculation = workload.speculation if relief.drafts else None
    return replace(
        workload, tiers=tiers, kv_tokens=workload.kv_tokens * relief.memory, speculation=speculation
    )


def _tier_with_relief(tier: Tier, relief: Relief) -> Tier:
    slo, factor = tier.slo, relief.patience
    return replace(
        tier,
        slo=replace(
            slo,
            ttft_s=slo.ttft_s and slo.ttft_s * factor,
            ttft_slowdown=slo.ttft_slowdown and slo.ttft_slowdown * factor,
            judge=Judge.MEAN if relief.whole_answers else slo.judge,
        ),
    )


def arrivals_of(workload: Scenario, rate_rps: float, relief: Relief) -> Iterator[Arrival]:
    """Yield the scenario's requests; without bursts, sessions arrive in a Poisson process."""
    recorded = arrivals(workload, rate_rps, seed=0)
    if not relief.no_bursts:
        yield from recorded
        return
    random, now_s = Random(0), 0.0
    for _, together in groupby(recorded, key=lambda one: one.session or one.id):
        now_s += random.expovariate(rate_rps)
        for one in together:
            yield one._replace(arrival_s=now_s)


def bound_share(name: str, relief: Relief, rate_rps: float) -> float:
    workload = with_relief(name, relief)
    return bound(arrivals_of(workload, rate_rps, relief), bound_setting(workload))


def attained_known(name: str, relief: Relief, rate_rps: float) -> float:
    return attained(with_relief(name, relief), relief, rate_rps, LengthKnowledge.KNOWN, TruthKind.EXACT)


def attained_predicted(name: str, relief: Relief, rate_rps: float) -> float:
    return attained(
        with_relief(name, relief), relief, rate_rps, LengthKnowledge.PREDICTED, TruthKind.MEASURED
    )


def attained(
    workload: Scenario, relief: Relief, rate_rps: float, lengths: LengthKnowledge, truth: TruthKind
) -> float:
    fleet = fleet_of(workload, "slos-serve", lengths, truth)
    kept: dict[str, bool] = {}
    for outcome in simulate(fleet, arrivals_of(workload, rate_rps, relief), 0):
        session = outcome.session or outcome.id
        kept[session] = kept.get(session, True) and outcome.met
    return sum(kept.values()) / len(kept)


Share = Callable[[str, Relief, float], float]
"""Returns the share of sessions whose SLOs are met at a rate."""


def capacity_rps(share: Share, within: float, name: str, relief: Relief) -> float:
    """Return the highest rate found at which the target is reached."""
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
    parser.add_argument("--predicted", action="store_true", help="slos-serve predicts lengths and measures")
    options = parser.parse_args()
    attained_share = attained_predicted if options.predicted else attained_known
    requested = [(bound_share, BOUND_WITHIN), (attained_share, OURS_WITHIN)]
    with ProcessPoolExecutor() as pool:
        rows = [(name, relief) for name in options.scenarios for relief in options.relief]
        searches = [
            [pool.submit(capacity_rps, share, within, name, RELIEFS[relief]) for share, within in requested]
            for name, relief in rows
        ]
        print(f"{'scenario':<12}{'relief':<20}{'bound req/s':>12}{'slos-serve':>12}{'share':>8}", flush=True)
        for (name, relief), (most, ours) in zip(rows, searches, strict=True):
            share = ours.result() / most.result()
            print(
                f"{name:<12}{relief:<20}{most.result():>12.3f}{ours.result():>12.3f}{share:>8.0%}",
                flush=True,
            )


if __name__ == "__main__":
    main()
