"""What Penstock's router and sidecar cost, beside vllm-router (Rust, PyPI) in the same run.

Three ways to the same kind of engine take turns: direct, through Penstock's router and sidecar, through
vllm-router. Asked of each: latency added with one client, requests a second on one core, CPU per streamed
token, memory. The engine is `bench/overhead/fast_engine.py`, which answers at once; see there why it is not
the simulated one. It reports its iterations to the sidecar, and the pool's targets are loose, so the sidecar
plans every request and admits all. What is measured runs on core 0, engines and client on core 1.

vllm-router does less: no admission, no schedule, no view of the engine. The ratio is a price, not a score.
"""

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import uvloop
from overhead import measures, profiles, report
from overhead.deployments import OTHER_CORE, Way, ways
from overhead.load import interleave
from overhead.measures import Seen

MEMORY_STREAMS, MEMORY_STEP_MS = 1000, 400.0


def main() -> None:
    options = parsed()
    os.sched_setaffinity(0, {OTHER_CORE})
    head = f"router overhead, {datetime.now(UTC):%Y-%m-%d}\n{report.machine()}\n"
    print(head, flush=True)
    with tempfile.TemporaryDirectory() as name:
        text = in_two_parts(options, Path(name))
    print(text)
    if options.out:
        options.out.write_text(f"{head}{settings(options)}\n\n{text}\n")


def in_two_parts(options: argparse.Namespace, folder: Path) -> str:
    """Speed first; then memory, with streams so slow that a thousand of them are no load."""
    with ways(folder, options.step_ms, peer=options.peer) as running:
        seen = {name: Seen() for name in running}
        uvloop.run(measured(running, seen, options))
        costs = uvloop.run(profiled(running["penstock"], options, folder)) if options.profile else ""
    with ways(folder, MEMORY_STEP_MS, peer=options.peer) as running:
        uvloop.run(remembered(running, seen))
    return f"{report.table('medians over rounds', report.rows(seen))}\n\n{costs}".rstrip()


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each way (default %(default)s)")
    parser.add_argument(
        "--requests", type=int, default=1000, help="per turn, for latency (default %(default)s)"
    )
    parser.add_argument(
        "--burst", type=int, default=6000, help="per turn, for requests/s (default %(default)s)"
    )
    parser.add_argument("--streams", type=int, default=256, help="for CPU per token (default %(default)s)")
    parser.add_argument(
        "--window-s", type=float, default=5.0, help="of steady streaming (default %(default)s)"
    )
    parser.add_argument(
        "--step-ms", type=float, default=30.0, help="between a stream's tokens (default %(default)s)"
    )
    parser.add_argument("--no-peer", dest="peer", action="store_false", help="without vllm-router")
    parser.add_argument("--profile", action="store_true", help="also the three largest costs of each process")
    parser.add_argument("--out", type=Path, help="write what is printed to this file too")
    return parser.parse_args()


def settings(options: argparse.Namespace) -> str:
    return (
        f"{options.rounds} rounds; latency: 1 connection x {options.requests}; rate: {measures.CONNECTIONS}"
        f" connections x {options.burst}; tokens: {options.streams} streams, one token per"
        f" {options.step_ms:g} ms each, for {options.window_s:g} s"
    )


async def measured(running: dict[str, Way], seen: dict[str, Seen], options: argparse.Namespace) -> None:
    for way in running.values():
        await measures.warm_up(way)
    for number, name in interleave(options.rounds, list(running)):
        progress(f"round {number + 1} of {options.rounds}: {name}")
        way = running[name]
        await measures.one_at_a_time(way, seen[name], options.requests)
        if way.pids:
            await measures.as_many_as_it_can(way, seen[name], options.burst)
            await measures.tokens(way, seen[name], options.streams, options.window_s)


async def remembered(running: dict[str, Way], seen: dict[str, Seen]) -> None:
    for name, way in running.items():
        if way.pids:
            progress(f"memory: {name}")
            measures.idle_memory(way, seen[name])
            await measures.memory(way, seen[name], MEMORY_STREAMS)


async def profiled(way: Way, options: argparse.Namespace, folder: Path) -> str:
    lines = ["largest costs, share of the process's busy time (py-spy, own time with the C code it calls)"]
    for name in way.pids:
        progress(f"profile: {name}")
        tokens = await profiles.of_tokens(way, name, options.streams, options.window_s, folder)
        requests = await profiles.of_requests(way, name, options.window_s, folder)
        lines += [f"{name}, {options.streams} streams:", *(f"  {cost}" for cost in tokens)]
        lines += [f"{name}, JSON requests:", *(f"  {cost}" for cost in requests)]
    return "\n".join(lines)


def progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
