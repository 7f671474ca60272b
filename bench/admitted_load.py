"""How much load a promise-keeping replica takes: attainment by rate, beside vLLM's own policy.

    .venv/bin/python bench/admitted_load.py [--model NAME] [--kv-tokens N] [--rates R,R,...]

One replica in virtual time, Poisson arrivals, lengths as in the SLOs-Serve paper's ChatBot (prompts
763 ± 424, answers 266 ± 160) and known, exact time model. Attainment counts all arrived.
"""

import argparse
from collections.abc import Iterator
from math import log, sqrt
from random import Random

from penstock_core.builtin_time_models import time_model
from penstock_core.replica_view import Limits
from penstock_core.routing import Backup
from penstock_core.slo import Judge, Slo, Tier
from penstock_simulator.simulation import Arrival, Fleet, Lengths, Verdict, simulate
from penstock_simulator.truth import TruthKind

CHAT = Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1, judge=Judge.WINDOW))


def log_normal(random: Random, mean: float, spread: float, most: int) -> int:
    variance = log(1 + (spread / mean) ** 2)
    return max(2, min(most, int(random.lognormvariate(log(mean) - variance / 2, sqrt(variance)))))


def chat(random: Random, rate_rps: float, count: int) -> Iterator[Arrival]:
    at_s = 0.0
    for i in range(count):
        at_s += random.expovariate(rate_rps)
        prompt, output = log_normal(random, 763, 424, 4000), log_normal(random, 266, 160, 2000)
        yield Arrival(f"{i:05d}", at_s, "chat", prompt, output)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Attainment of one replica by arrival rate, under slos-serve and under vllm."
    )
    parser.add_argument("--model", default="slos-serve-opt-6.7b-a100", help="built-in time model")
    parser.add_argument("--kv-tokens", type=int, default=43296, help="KV cache (default 43296)")
    parser.add_argument("--rates", default="3,3.5,4,4.5,5,6", help="requests per second, comma separated")
    parser.add_argument("--requests", type=int, default=1500, help="per run (default 1500)")
    parser.add_argument("--batch-tokens", type=int, default=512, help="vllm's token budget (default 512)")
    parser.add_argument("--seed", type=int, default=1, help="of the arrivals (default 1)")
    options = parser.parse_args()
    print(f"{'req/s':>6} {'policy':>11} {'attainment':>11} {'admitted':>9} {'missed':>7}")
    for rate in map(float, options.rates.split(",")):
        for policy, limits in (("slos-serve", Limits()), ("vllm", Limits(options.batch_tokens))):
            fleet = Fleet(
                policy,
                time_model(options.model),
                options.kv_tokens,
                {"chat": CHAT},
                "chat",
                limits=limits,
                truth=TruthKind.EXACT,
                lengths=Lengths.KNOWN,
                backup=Backup.REJECT,
                hop_latency_s=0.0,
            )
            arrivals = chat(Random(options.seed), rate, options.requests)
            outcomes = list(simulate(fleet, arrivals, options.seed))
            met = sum(outcome.met for outcome in outcomes)
            admitted = sum(outcome.verdict is Verdict.ADMITTED for outcome in outcomes)
            shares = f"{met / len(outcomes):>11.3f} {admitted / len(outcomes):>9.3f}"
            print(f"{rate:>6} {policy:>11} {shares} {admitted - met:>7}")


if __name__ == "__main__":
    main()
