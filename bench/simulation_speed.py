"""Measures the cost of simulation: seconds of one core and memory, by policy, for a replica and a fleet.

    .venv/bin/python bench/simulation_speed.py
    .venv/bin/python bench/simulation_speed.py --replicas 64 --seconds 600 --rate 5 --policies slos-serve

Poisson arrivals with the lengths of the SLOs-Serve paper's ChatBot, predicted lengths, measured truth,
Llama-3 8B on an A100; 10 requests a second are near the capacity of one replica. Each policy runs
in a process of its own, so that its memory is its own.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterator
from math import log, sqrt
from random import Random
from resource import RUSAGE_SELF, getrusage
from time import process_time

from penstock_core.domain.replica_view import Limits
from penstock_core.domain.slo import Slo, Tier
from penstock_core.timing.builtin_models import builtin
from penstock_simulator.simulation import Arrival, Fleet, simulate

ENGINE = "llama-3-8b-a100"
CHAT = Tier("chat", Slo(ttft_slowdown=5, tpot_s=0.1))
BATCH_TOKENS = {"slos-serve": 8192}
OTHERS_BATCH_TOKENS = 512


def traffic(rate_rps: float, seconds: float) -> Iterator[Arrival]:
    random, at_s, number = Random(1), 0.0, 0
    while (at_s := at_s + random.expovariate(rate_rps)) < seconds:
        prompt, output = (log_normal(random, mean, spread) for mean, spread in ((763, 424), (266, 160)))
        yield Arrival(str(number), at_s, "chat", prompt, output)
        number += 1


def log_normal(random: Random, mean: float, spread: float) -> int:
    variance = log(1 + (spread / mean) ** 2)
    return max(2, min(4000, round(random.lognormvariate(log(mean) - variance / 2, sqrt(variance)))))


def measure(policy: str, options: argparse.Namespace) -> None:
    """Simulate one policy, and print its line."""
    fleet = Fleet(
        policy,
        builtin(ENGINE).model,
        builtin(ENGINE).kv_cache_tokens,
        {"chat": CHAT},
        "chat",
        replicas=options.replicas,
        order=options.order,
        limits=Limits(BATCH_TOKENS.get(policy, OTHERS_BATCH_TOKENS)),
        max_waiting=1024,
    )
    requests = met = 0
    began_s = process_time()
    for outcome in simulate(fleet, traffic(options.rate * options.replicas, options.seconds), 0):
        requests, met = requests + 1, met + outcome.met
    cpu_s, peak_mb = process_time() - began_s, getrusage(RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{policy:>12} {requests:>9} {100 * met / requests:>10.1f} {cpu_s:>8.1f} {peak_mb:>8.0f}", flush=True
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", default="slos-serve,vllm", help="comma separated")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=300.0, help="seconds of traffic (default 300)")
    parser.add_argument("--rate", type=float, default=10.0, help="requests/s for each replica (default 10)")
    parser.add_argument("--order", default="round-robin")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        measure(options.policies, options)
        return
    print(f"{'policy':>12} {'requests':>9} {'attained %':>10} {'core s':>8} {'peak MB':>8}", flush=True)
    for policy in options.policies.split(","):
        subprocess.run([sys.executable, *sys.argv, "--policies", policy, "--here"], check=True)


if __name__ == "__main__":
    main()
