"""Compares routing orders: attainment and hops of a fleet in virtual time, and scaling with replicas.

    .venv/bin/python bench/routing_orders.py orders [--scenario S,S] [--replicas N] [--hops N] [--age-ms A]
        [--routers N [--placement-delay-ms A]]
    .venv/bin/python bench/routing_orders.py scaling [--scenario S,S] [--replicas N] [--order O,O]

`orders` serves the same requests under every order and prints Markdown, one row per order: attainment, the
difference from round-robin on the same samples (mean and standard error over seeds), hops per request, and
the share admitted by the first replica. `scaling` finds by bisection the highest rate per replica at which 90
% of all sessions meet every target, for one replica and for many, with as many hops as replicas.

Policy slos-serve, predicted lengths, measured truth. Rates are per replica, requests (or sessions) a second.
"""

import argparse
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, ProcessPoolExecutor
from itertools import repeat
from math import inf, sqrt
from statistics import mean, stdev
from typing import NamedTuple

from penstock_core.routing.orders import ORDERS
from penstock_core.timing.builtin_models import time_model
from penstock_simulator.scenarios import arrivals, scenario
from penstock_simulator.simulation import Fleet, simulate

TARGET = 0.9
NEAR_CAPACITY_RPS = {"chatbot": 7.5, "coder": 3.4, "toolllm": 0.8, "mixed": 5.5}
"""Rates at which about a tenth of requests miss, so that orders can differ."""

STEP = 1.02
"""Ratio of its bounds at which bisection stops."""


class Run(NamedTuple):
    """Results of one sample: shares of sessions (attained) and of requests, and hops per request."""

    attained: float
    first_try: float
    hops: float


class RoutingSetting(NamedTuple):
    """A fleet under load."""

    scenario: str
    order: str
    replicas: int
    max_hops: int
    age_s: float
    rate_rps: float
    routers: int = 1
    placement_delay_s: float = inf


def served(setting: RoutingSetting, seed: int, laps: int) -> Run:
    """Serve one sample, and return its results."""
    workload = scenario(setting.scenario)
    fleet = Fleet(
        policy="slos-serve",
        model=time_model(workload.time_model),
        kv_tokens=workload.kv_tokens,
        tiers=workload.tiers,
        default_tier=next(iter(workload.tiers)),
        replicas=setting.replicas,
        limits=workload.limits,
        speculation=workload.speculation,
        order=setting.order,
        max_hops=setting.max_hops,
        snapshot_age_s=setting.age_s,
        routers=setting.routers,
        placement_delay_s=setting.placement_delay_s,
    )
    requests = hops = first = 0
    kept: dict[str, bool] = {}
    for outcome in simulate(fleet, arrivals(workload, setting.rate_rps * setting.replicas, seed, laps), seed):
        requests += 1
        hops += outcome.hops
        first += outcome.hops == 1 and outcome.verdict == "admitted"
        session = outcome.session or outcome.id
        kept[session] = kept.get(session, True) and outcome.met
    return Run(sum(kept.values()) / len(kept), first / requests, hops / requests)


def samples(pool: Executor, setting: RoutingSetting, options: argparse.Namespace) -> list[Run]:
    """Serve every sample on all cores, and return the results."""
    seeds = range(options.seeds)
    return list(pool.map(served, repeat(setting), seeds, repeat(options.laps)))


def orders(pool: Executor, options: argparse.Namespace) -> None:
    for name in options.scenario:
        rate_rps = options.rate or NEAR_CAPACITY_RPS[name]
        for max_hops in options.hops:
            for age_ms in options.age_ms:
                print(
                    f"\n**{name}**, {options.replicas} replicas, {rate_rps:g}/s each, at most {max_hops}"
                    f" hops, snapshots {age_ms:g} ms old, {routers(options)}, {options.seeds} samples\n"
                )
                print("| order | attained % | to round-robin | admitted at first % | hops |")
                print("|---|--:|--:|--:|--:|", flush=True)
                setting = RoutingSetting(
                    *(name, "", options.replicas, max_hops, age_ms / 1000, rate_rps),
                    *(options.routers, options.placement_delay_ms / 1000),
                )
                _compare(pool, setting, options)


def routers(options: argparse.Namespace) -> str:
    """Return the number of routers, and when they see each other's placements."""
    if options.routers == 1:
        return "1 router"
    delay_ms = options.placement_delay_ms
    shares = "nothing" if delay_ms == inf else f"placements after {delay_ms:g} ms"
    return f"{options.routers} routers that share {shares}"


def _compare(pool: Executor, setting: RoutingSetting, options: argparse.Namespace) -> None:
    reference: list[Run] = []
    for order in options.order:
        runs = samples(pool, setting._replace(order=order), options)
        reference = reference or runs
        gains = [100 * (run.attained - other.attained) for run, other in zip(runs, reference, strict=True)]
        error = stdev(gains) / sqrt(len(gains)) if len(gains) > 1 else inf
        against = "" if runs is reference else f"{mean(gains):+.2f} ± {error:.2f}"
        print(
            f"| {order} | {_share(runs, lambda run: run.attained)} | {against}"
            f" | {_share(runs, lambda run: run.first_try)} | {mean(run.hops for run in runs):.3f} |",
            flush=True,
        )


def _share(runs: Iterable[Run], of: Callable[[Run], float]) -> str:
    return f"{100 * mean(map(of, runs)):.2f}"


def scaling(pool: Executor, options: argparse.Namespace) -> None:
    many = options.replicas
    print(f"\n| scenario | 1 replica, /s | order | {many} replicas, /s each | times one replica |")
    print("|---|--:|---|--:|--:|", flush=True)
    for name in options.scenario:
        alone_rps = _capacity_rps(pool, RoutingSetting(name, "round-robin", 1, 1, 0.005, 1.0), options)
        for order in options.order:
            each_rps = _capacity_rps(pool, RoutingSetting(name, order, many, many, 0.005, alone_rps), options)
            times = many * each_rps / alone_rps
            print(f"| {name} | {alone_rps:.3f} | {order} | {each_rps:.3f} | {times:.2f} |", flush=True)


def _capacity_rps(pool: Executor, setting: RoutingSetting, options: argparse.Namespace) -> float:
    """Return the highest rate per replica that attains, searched outwards from the setting's rate."""

    def kept(rate_rps: float) -> bool:
        runs = samples(pool, setting._replace(rate_rps=rate_rps), options)
        return mean(run.attained for run in runs) >= TARGET

    low = high = setting.rate_rps
    if kept(low):
        while kept(high := high * 1.5):
            low = high
    else:
        while not kept(low := low / 1.5):
            high = low
    while high / low > STEP:
        middle = sqrt(low * high)
        low, high = (middle, high) if kept(middle) else (low, middle)
    return low


def names(text: str) -> list[str]:
    return text.split(",")


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def figures(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description="Routing orders, compared in virtual time.")
    parser.add_argument("what", choices=["orders", "scaling"])
    parser.add_argument("--scenario", type=names, default=["coder", "toolllm", "mixed", "chatbot"])
    parser.add_argument("--order", type=names, default=list(ORDERS), help="orders; the first is the baseline")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument(
        "--rate", type=float, help="rate per replica; by default near the scenario's capacity"
    )
    parser.add_argument("--hops", type=numbers, default=[3], help="most hops (default 3)")
    parser.add_argument("--age-ms", type=figures, default=[5.0], help="age of snapshots (default 5)")
    parser.add_argument(
        "--routers", type=int, default=1, help="number of routers, which get requests in turn (default 1)"
    )
    parser.add_argument(
        "--placement-delay-ms",
        type=float,
        default=inf,
        help="time until the other routers see a placement (default never)",
    )
    parser.add_argument("--seeds", type=int, default=3, help="samples (default 3)")
    parser.add_argument("--laps", type=int, default=1, help="repetitions of the recorded window (default 1)")
    options = parser.parse_args()
    with ProcessPoolExecutor() as pool:
        {"orders": orders, "scaling": scaling}[options.what](pool, options)


if __name__ == "__main__":
    main()
