"""Measures chats whose every gap between tokens is judged, on one replica of Llama-3-8B on an H100.

    .venv/bin/python bench/single_gaps.py [--rates 6,10,14,18] [--seeds 3] [--first-seed 9]

Prompts have 200 to 2,500 tokens and answers 30 to 200; TTFT within 5 times the idle prefill, no gap longer
than 50 ms; predicted lengths, measured ground truth. Prints admitted requests that met their SLO, attainment
of all requests and their mean TTFT, over all samples.
"""

import argparse
from random import Random
from statistics import fmean

from penstock_core.domain.slo import Judge, Slo, Tier
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.arrival import Arrival
from penstock_simulator.simulation import FirstVerdict, Fleet, SimulatedOutcome, simulate

REQUESTS, PROMPT_TOKENS, ANSWER_TOKENS = 1000, (200, 2500), (30, 200)
FLEET = Fleet(
    "slos-serve",
    time_model("llama-3-8b-h100"),
    kv_tokens=400_000,
    tiers={"chat": Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.05, judge=Judge.MAX))},
    default_tier="chat",
)


def arrivals(rate_rps: float, seed: int) -> list[Arrival]:
    random, at_s, arriving = Random(seed), 0.0, []
    for number in range(REQUESTS):
        at_s += random.expovariate(rate_rps)
        lengths = random.randint(*PROMPT_TOKENS), random.randint(*ANSWER_TOKENS)
        arriving.append(Arrival(str(number), at_s, "chat", *lengths))
    return arriving


def row(ended: list[SimulatedOutcome]) -> str:
    admitted = [one for one in ended if one.verdict is FirstVerdict.ADMITTED]
    kept = fmean([one.met for one in admitted])
    ttft_s = fmean([one.ttft_s for one in ended if one.ttft_s is not None])
    attained = fmean([one.met for one in ended])
    return f"{kept:>8.2%} of {len(admitted):>5} {attained:>9.4f} {1e3 * ttft_s:>7.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rates", default="6,10,14,18", help="requests per second, comma separated")
    parser.add_argument("--seeds", type=int, default=3, help="samples of each rate (default %(default)s)")
    parser.add_argument("--first-seed", type=int, default=9, help="seed of the first (default %(default)s)")
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    print(f"{'rate':>6} {'admitted that met':>17} {'attained':>9} {'mean TTFT':>10}")
    for rate_rps in map(float, options.rates.split(",")):
        ended = [one for seed in seeds for one in simulate(FLEET, arrivals(rate_rps, seed), seed)]
        print(f"{rate_rps:>6g} {row(ended)}", flush=True)


if __name__ == "__main__":
    main()
