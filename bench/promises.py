"""How many of the promises that slos-serve makes are kept, at capacity and at three times as much.

    .venv/bin/python bench/promises.py [--scenarios S,S] [--seeds N]

One replica in virtual time, each scenario at a rate near its capacity and at three times that. Twice without
luck or surprise (known lengths, exact truth; without speculation, and with it), and once as in production
(predicted lengths, measured truth). Attainment counts all that arrived; promises are those it was admitted
with. Requests served best effort that kept their targets all the same count as attained, not as promised.
"""

import argparse
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from penstock_core.builtin_time_models import time_model
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import Fleet, Lengths, Outcome, Verdict, simulate
from penstock_simulator.truth import TruthKind

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
    """What is known, and whether the engine drafts."""

    lengths: Lengths
    truth: TruthKind
    speculates: bool


TERMS = {
    "known, exact, no drafts": Terms(Lengths.KNOWN, TruthKind.EXACT, speculates=False),
    "known, exact": Terms(Lengths.KNOWN, TruthKind.EXACT, speculates=True),
    "predicted, measured": Terms(Lengths.PREDICTED, TruthKind.MEASURED, speculates=True),
}


def outcomes(name: str, rate_rps: float, terms: Terms, seed: int) -> Iterator[Outcome]:
    here = scenario(name)
    fleet = Fleet(
        "slos-serve",
        time_model(here.time_model),
        here.kv_tokens,
        here.tiers,
        next(iter(here.tiers)),
        limits=here.limits,
        truth=terms.truth,
        lengths=terms.lengths,
        max_output_tokens=here.max_output_tokens,
        speculation=here.speculation if terms.speculates else None,
    )
    coming = islice(arrivals(here, rate_rps, seed), MOST_REQUESTS)
    return simulate(fleet, coming, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scenarios", default=",".join(NEAR_CAPACITY_RPS), help="comma separated")
    parser.add_argument("--seeds", type=int, default=1, help="samples of each (default 1)")
    options = parser.parse_args()
    print(f"{'':24} {'scenario':>10} {'req/s':>6} {'attained':>9} {'promised':>9} {'broken':>7} {'kept':>8}")
    for name, terms in TERMS.items():
        for here in options.scenarios.split(","):
            if not terms.speculates and scenario(here).speculation is None:
                continue
            for factor in (1.0, OVERLOAD):
                rate_rps = NEAR_CAPACITY_RPS[here] * factor
                ended = [o for seed in range(options.seeds) for o in outcomes(here, rate_rps, terms, seed)]
                promised = [o for o in ended if o.verdict is Verdict.ADMITTED]
                broken = sum(not o.met for o in promised)
                attained = sum(o.met for o in ended) / len(ended)
                kept = 1 - broken / len(promised)
                figures = f"{attained:>9.3f} {len(promised):>9} {broken:>7} {kept:>8.2%}"
                print(f"{name:24} {here:>10} {rate_rps:>6.2f} {figures}", flush=True)


if __name__ == "__main__":
    main()
