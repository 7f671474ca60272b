"""Measures the costs of the ways from a client to an engine, in one run.

Penstock's router with a sidecar, an Envoy with a picker by ext_authz or by ext_proc, Envoy alone, and from
PyPI vllm-router, smg and LiteLLM's proxy take turns in front of the same kind of engine. Measured for each:
latency added with one client, requests per second on one core, CPU per request and per streamed token,
memory; for Penstock's also the cost of a hop, and latencies at 500 requests/s in front of ten replicas. The
engine is `bench/overhead/fast_engine.py`, which answers immediately; its docstring explains why the simulated
engine is not used. It reports its iterations to the sidecar, and the pool's targets are loose, so the sidecar
plans every request and admits all. Measured processes run on core 0, engines and client on core 1.

The other programs do less: they have no admission, no scheduling and no view of the engine. So a ratio is the
cost of these functions.
"""

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from overhead import fleet, measures, profiles, report
from overhead.load import interleave
from overhead.machine import OTHER_CORE, EngineRoute
from overhead.measures import Measurements
from overhead.ways import OURS, WAYS, ways

MEMORY_STREAMS, MEMORY_STEP_MS = 1000, 400.0


def main() -> None:
    options = parsed()
    os.sched_setaffinity(0, {OTHER_CORE})
    head = f"router overhead, {datetime.now(UTC):%Y-%m-%d}\n{report.machine()}\n"
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as name:
        text = f"{settings(options)}\n\n{in_parts(options, Path(name))}"
    print(text)
    if options.out:
        options.out.write_text(f"{head}{text}\n")


def in_parts(options: argparse.Namespace, folder: Path) -> str:
    """Measure speed, then memory with a thousand slow streams, then several replicas; return the report."""
    results = {name: Measurements() for name in options.ways}
    with ways(folder / "speed", options.step_ms, options.ways) as running:
        uvloop.run(measured(running, results, options))
        costs = [uvloop.run(profiled(running[name], options, folder)) for name in options.profile]
    carry = [name for name, way in running.items() if way.pids and way.most_streams >= MEMORY_STREAMS]
    with ways(folder / "memory", MEMORY_STEP_MS, carry) as running:
        uvloop.run(measure_memory(running, results))
    progress("several replicas")
    fleets = uvloop.run(fleet.measured(folder, options.rounds, options.seconds))
    lines = [*report.rows(results), *report.fleet_rows(fleets)]
    columns = [name for name in options.ways if name != "direct"]
    return "\n\n".join(
        [report.table(lines, columns), report.by_process(results), report.goals(lines), *costs]
    )


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=3, help="turns of each way (default %(default)s)")
    add(
        "--seconds",
        type=float,
        default=2.0,
        help="seconds of each measurement in a turn (default %(default)s)",
    )
    add(
        "--streams",
        type=int,
        default=256,
        help="streams for CPU per token; a quarter of them is measured too (default %(default)s)",
    )
    add("--step-ms", type=float, default=30.0, help="milliseconds between tokens (default %(default)s)")
    add("--without", action="append", default=[], choices=list(WAYS), help="exclude a way; repeatable")
    add("--profile", action="store_true", help="also print the three largest costs of each Penstock process")
    add("--out", type=Path, help="also write the output to this file")
    options = parser.parse_args()
    options.ways = [name for name in WAYS if name not in options.without]
    options.profile = [name for name in OURS if name in options.ways] if options.profile else []
    return options


def settings(options: argparse.Namespace) -> str:
    return (
        f"{options.rounds} rounds of {options.seconds:g} s for each measure; latency: 1 connection; rate:"
        f" {measures.CONNECTIONS} connections; tokens: {options.streams} streams (few:"
        f" {options.streams // 4}; litellm: 16, which it carries), one token per {options.step_ms:g} ms each"
    )


async def measured(
    running: dict[str, EngineRoute], results: dict[str, Measurements], options: argparse.Namespace
) -> None:
    for name, way in running.items():
        measures.idle_memory(way, results[name])
        await measures.warm_up(way)
    for number, name in interleave(options.rounds, list(running)):
        progress(f"round {number + 1} of {options.rounds}: {name}")
        way, one = running[name], results[name]
        await measures.single_client_latency(way, one, options.seconds)
        if way.pids:
            await measures.throughput(way, one, options.seconds)
            for costs, streams in (
                (one.few_token_cpu_us, options.streams // 4),
                (one.token_cpu_us, options.streams),
            ):
                await measures.tokens(way, costs, min(streams, way.most_streams), options.seconds)


async def measure_memory(running: dict[str, EngineRoute], results: dict[str, Measurements]) -> None:
    for name, way in running.items():
        progress(f"memory: {name}")
        await measures.memory(way, results[name], MEMORY_STREAMS)


async def profiled(way: EngineRoute, options: argparse.Namespace, folder: Path) -> str:
    lines = [
        f"{way.name}: largest costs, share of the process's busy time (py-spy, own time with its C code)"
    ]
    for name in way.pids:
        if name == "envoy":
            continue
        progress(f"profile: {way.name}: {name}")
        tokens = await profiles.of_tokens(way, name, options.streams, 5.0, folder)
        requests = await profiles.of_requests(way, name, 5.0, folder)
        lines += [f"{name}, {options.streams} streams:", *(f"  {cost}" for cost in tokens)]
        lines += [f"{name}, JSON requests:", *(f"  {cost}" for cost in requests)]
    return "\n".join(lines)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
