"""Runs the whole system under seeded faults, one run per seed, and counts broken invariants.

    make bench-faults SEEDS=10000 FIRST=0

Prints every seed that breaks an invariant (docs/invariants.md) with the evidence, then faults by kind,
requests by outcome and moves by outcome. Exit code 1 if an invariant broke. A single seed, `SEEDS=1
FIRST=seed`, replays that run.
"""

import argparse
import gc
import logging
import os
import sys
import time
from collections import Counter
from multiprocessing import Pool
from typing import NamedTuple

import structlog
from fault_simulation.clients import Answer
from fault_simulation.invariants import error_of
from fault_simulation.run import simulate

SEEDS_PER_TASK = 8
"""Seeds in one task of a process."""


class SeedResult(NamedTuple):
    """Results of one seed. slos_checked: admitted requests whose SLO was checked."""

    seed: int
    broken: list[str]
    faults: Counter[str]
    outcomes: Counter[str]
    moves: Counter[str]
    slos_checked: int


def main() -> int:
    """Run the seeds, and return the exit code."""
    parser = argparse.ArgumentParser(description="The whole system under seeded faults.")
    parser.add_argument("--seeds", type=int, default=10_000, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: all CPUs)")
    options = parser.parse_args()
    began_s, broken, slos_checked = time.monotonic(), 0, 0
    faults, outcomes, moves = Counter[str](), Counter[str](), Counter[str]()
    with Pool(options.jobs, _start) as pool:
        seeds = range(options.first, options.first + options.seeds)
        for result in pool.imap_unordered(_run, seeds, chunksize=SEEDS_PER_TASK):
            faults += result.faults
            outcomes += result.outcomes
            moves += result.moves
            slos_checked += result.slos_checked
            broken += bool(result.broken)
            for line in result.broken:
                print(f"seed {result.seed}: {line}", flush=True)
    _print("faults injected", faults)
    _print("requests", outcomes)
    _print("moves", moves)
    print(f"SLOs of admitted requests checked: {slos_checked}")
    print(f"{options.seeds} seeds in {time.monotonic() - began_s:.0f} s: {broken} with a broken invariant")
    return 1 if broken else 0


def _start() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    gc.freeze()
    gc.set_threshold(50_000)


def _run(seed: int) -> SeedResult:
    try:
        result = simulate(seed)
    except Exception as error:  # a run that does not end breaks an invariant too
        return SeedResult(seed, [f"8 the run ended by {error!r}"], Counter(), Counter(), Counter(), 0)
    outcomes = Counter(map(_outcome, result.answers))
    return SeedResult(seed, result.broken, result.faults, outcomes, result.moves, result.slos_checked)


def _outcome(answer: Answer) -> str:
    if answer.left:
        return "client left"
    if not answer.whole:
        return "lost with its router"
    if answer.status != 200:
        return f"refused ({answer.status})"
    try:
        return "ended by an error event" if error_of(answer) else "answered"
    except ValueError:
        return "broken: an event is not JSON"


def _print(what: str, counts: Counter[str]) -> None:
    print(f"{what}: {counts.total()}")
    for name, count in sorted(counts.items()):
        print(f"  {name:28} {count}")


if __name__ == "__main__":
    sys.exit(main())
