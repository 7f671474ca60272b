"""Measures the capacity of one GPU with vLLM's own scheduler and with Penstock's, in requests per second.

  make bench-gpu                              on a machine with an NVIDIA GPU and vLLM
  make bench-gpu GPU="--minutes 60 ..."       PYTHONPATH=bench .venv/bin/python -m gpu --help: all options

Capacity is the highest rate at which 90 % of all requests meet every target; rejected and failed requests
count as misses. vLLM is called directly, at several token budgets, of which the best counts. Penstock is a
whole pool on this machine: router, sidecar and vLLM with the plug-in. All get the same requests of the same
scenarios and are judged alike, with slowdowns by a time model that is measured first.

Every trial is stored when it ends, in bench/results/local, and the same command continues from there. Without
a GPU nothing is measured or written. `--device cpu` tests the program itself with a random model.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from penstock_core.domain.slo import Tier
from penstock_pool import named_time_model
from penstock_simulator.scenarios import SCENARIOS

from gpu.device import gpus
from gpu.journal import Journal, Report, digest
from gpu.load import LoadOptions, guess_rps, replay, requests, write_trace
from gpu.options import conditions_of, parsed, target_of, tiers_of
from gpu.page import SearchResult, as_json, as_page
from gpu.search import bracket_of, given, rates
from gpu.ways import MEASURED, PENSTOCK, ServingWay, Target, WayServer, pool_document, profile, write_pool

RESULTS = Path(__file__).resolve().parents[1] / "results"
LOCAL = RESULTS / "local"


class Bench(NamedTuple):
    """Inputs that all ways share. folder: trials and temporary files under these conditions."""

    options: argparse.Namespace
    target: Target
    tiers: Mapping[str, Tier]
    load: LoadOptions
    folder: Path
    journal: Journal
    ends_s: float


def main() -> None:
    options = parsed(__doc__ or "")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are stopped
    devices = gpus() if options.device == "gpu" else [f"CPU, {os.cpu_count()} cores"]
    if not devices:
        print("bench-gpu: nvidia-smi finds no NVIDIA GPU here; nothing was measured or written")
        return
    LOCAL.mkdir(parents=True, exist_ok=True)
    target = target_of(options, LOCAL)
    conditions = conditions_of(options, target, devices)
    folder = LOCAL / f"{options.device}-{digest(conditions)}"
    folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(
        options=options,
        target=target,
        tiers=tiers_of(options),
        load=LoadOptions(options.seconds, options.scale, options.context_tokens, options.timeout),
        folder=folder,
        journal=Journal(folder / "trials.jsonl"),
        ends_s=time.monotonic() + 60 * options.minutes,
    )
    head = headline(conditions)
    print(f"{head}\n\nTrials are kept in {folder}.", flush=True)
    found = all_ways(bench)
    write(bench, conditions, as_page(head, bench.tiers, found), found)


def headline(conditions: Mapping[str, Any]) -> str:
    devices, date = "; ".join(conditions["device"]), f"{datetime.now(UTC):%Y-%m-%d}"
    return (
        f"# Capacity on {devices}, {date}\n\n"
        f"{conditions['model']} under vLLM {conditions['vllm']}; trials of {conditions['seconds']:g} s."
    )


def all_ways(bench: Bench) -> list[SearchResult]:
    """Search vLLM at each budget (each must exceed the best before), then Penstock, in equal times.

    With given rates, the time is for all ways together.
    """
    budgets = sorted(map(int, bench.options.budgets.split(",")), reverse=True)
    ways = [ServingWay(budget) for budget in budgets]
    ways += [ServingWay(budgets[0], policy) for policy in bench.options.policies.split(",")]
    found: list[SearchResult] = []
    for number, way in enumerate(ways):
        left = 1 if bench.options.rates else len(ways) - number
        print(f"\n{way.name}", flush=True)
        found += one_way(bench, way, share_s(bench.ends_s, left), found)
    return found


def share_s(ends_s: float, left: int) -> float:
    """Return the time at which the first of `left` equal shares of the remaining time ends."""
    now_s = time.monotonic()
    return now_s + max(ends_s - now_s, 0.0) / left


def one_way(
    bench: Bench, way: ServingWay, ends_s: float, before: Sequence[SearchResult]
) -> list[SearchResult]:
    """Search all scenarios with one way. ends_s: time after which no trial begins."""
    found = []
    names = bench.options.scenarios.split(",")
    document = pool_document(bench.target, way, bench.tiers, "auto")
    write_pool(bench.folder, document)
    with WayServer(bench.target, way, bench.folder) as server:
        measured = bench.folder / MEASURED
        if not measured.exists():
            print("  measuring the engine", flush=True)
            profile(server.url(), measured, bench.options.profile_seconds, way, bench.target.max_running)
        write_pool(bench.folder, pool_document(bench.target, way, bench.tiers, MEASURED))
        for number, name in enumerate(names):
            until_s = share_s(ends_s, len(names) - number)
            rivals = [one.bracket.low_rps for one in before if one.scenario == name and not one.way.policy]
            bar_rps = max(rivals, default=0.0) if way.policy is None else 0.0
            found.append(searched(bench, server, way, name, until_s=until_s, bar_rps=bar_rps))
    return found


def searched(
    bench: Bench, server: WayServer, way: ServingWay, scenario: str, *, until_s: float, bar_rps: float
) -> SearchResult:
    """Search a capacity until `until_s`."""
    model = named_time_model(str(bench.folder / MEASURED))
    assert model is not None
    guess = guess_rps(SCENARIOS[scenario], model, bench.load)
    requested = given(bench.options.rates) if bench.options.rates else rates(guess, bar_rps)
    tried: dict[float, bool] = {}
    finished, rate_rps = False, next(requested)
    while not finished:
        known = bench.journal.get(way.name, scenario, rate_rps)
        if known is None and time.monotonic() + bench.load.seconds > until_s:
            break
        report = known or trial(bench, server, way, scenario, rate_rps)
        tried[rate_rps] = report["attainment"] >= bench.options.attainment
        try:
            rate_rps = requested.send(tried[rate_rps])
        except StopIteration:
            finished = True
    return SearchResult(scenario, way, bracket_of(tried), finished, bench.journal.trials(way.name, scenario))


def trial(bench: Bench, server: WayServer, way: ServingWay, scenario: str, rate_rps: float) -> Report:
    """Run a trial at a rate, and store and return its report."""
    url = server.url()
    requested = requests(SCENARIOS[scenario], rate_rps, bench.load)
    write_trace(bench.folder / "trace.csv", requested)
    seed = len(bench.journal.trials(way.name, scenario)) + 1
    began_s = time.monotonic()
    report = replay(PENSTOCK, bench.folder, url, seed, bench.load.timeout_s)
    bench.journal.add(way.name, scenario, rate_rps, report)
    left = max(bench.ends_s - time.monotonic(), 0.0) / 60
    took_s = time.monotonic() - began_s
    reported = f"{100 * report['attainment']:5.1f} % of {report['requests']} kept"
    print(
        f"  {scenario} {rate_rps:8g} requests/s: {reported}, {took_s:.0f} s; {left:.0f} minutes left",
        flush=True,
    )
    return report


def write(bench: Bench, conditions: Mapping[str, Any], page: str, found: Sequence[SearchResult]) -> None:
    """Write the page and its JSON: of a GPU to the results, of a CPU to its trials' folder."""
    print(f"\n{page}")
    folder, name = (RESULTS, "gpu") if bench.options.device == "gpu" else (bench.folder, "cpu")
    (folder / f"{name}.md").write_text(page)
    (folder / f"{name}.json").write_text(json.dumps(as_json(conditions, found), indent=2) + "\n")
    print(f"Written to {folder / name}.md and .json.")


if __name__ == "__main__":
    main()
