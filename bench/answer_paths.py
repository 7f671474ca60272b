"""Measures the CPU cost of a streamed token by `engine.answerPath`, sidecar and direct, without and with TLS.

With TLS, routers and sidecars use mutual TLS as in a cluster, and an engine that routers read from serves TLS
too. So the engine's process is measured as well as router and sidecar: its additional CPU time is the cost of
encryption. It encrypts as vLLM does, with uvloop. CPU time is read from the kernel, and ways take turns.
"""

import argparse
import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import uvloop
from overhead import measures, report
from overhead.deployments import DIRECT_POOL, POOL, replicas, router
from overhead.load import interleave
from overhead.machine import OTHER_CORE, EngineRoute, Machine, machine
from overhead.tls_files import write_tls_files

PROCESSES = ("router", "sidecar", "engine")
WAYS = {
    "sidecar": (POOL, False),
    "sidecar, TLS": (POOL, True),
    "direct": (DIRECT_POOL, False),
    "direct, TLS": (DIRECT_POOL, True),
}
"""Pool of each way, and whether it has TLS."""

Costs = dict[str, list[float]]
"""Microseconds of CPU per token by process, one value for each turn."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (default %(default)s)")
    parser.add_argument("--seconds", type=float, default=3.0, help="seconds of a turn (default %(default)s)")
    parser.add_argument(
        "--streams",
        type=int,
        default=256,
        help="streams; a quarter of them is measured too (default %(default)s)",
    )
    parser.add_argument(
        "--step-ms", type=float, default=30.0, help="milliseconds between tokens (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the output to this file")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    head = f"CPU us of a streamed token by answer path, {datetime.now(UTC):%Y-%m-%d}\n{report.machine()}"
    measure = (
        f"{options.rounds} turns of {options.seconds:g} s, a token per {options.step_ms:g} ms and stream"
    )
    found = uvloop.run(measured(options))
    ended = ", ".join(f"{value:.2f}" for value in os.getloadavg())
    tables = [table(f"{streams} streams", costs) for streams, costs in found.items()]
    text = "\n\n".join([f"{head}; at the end {ended}\n{measure}", *tables])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


async def measured(options: argparse.Namespace) -> dict[int, dict[str, Costs]]:
    """Return the costs of each way, by the number of streams."""
    found: dict[int, dict[str, Costs]] = {
        streams: {name: {} for name in WAYS} for streams in (options.streams // 4, options.streams)
    }
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder)) as host:
        running = {name: way(host, name, options.step_ms) for name in WAYS}
        for each in running.values():
            await measures.warm_up(each)
        for _, name in interleave(options.rounds, list(running)):
            for streams, costs in found.items():
                await measures.tokens(running[name], costs[name], streams, options.seconds)
    return found


def way(host: Machine, name: str, step_ms: float) -> EngineRoute:
    """Start a way, and return it with the engine's process."""
    pool, encrypted = WAYS[name]
    slug = name.replace(", ", "-")
    tls = write_tls_files(host.folder / slug) if encrypted else None
    (behind,) = replicas(host, slug, [pool], step_ms, http=False, tls=tls)
    front = router(host, slug, [behind], pool_text=pool, tls=tls)
    return replace(front, pids=front.pids | {"engine": behind.engine_pid})


def table(title: str, by_way: Mapping[str, Costs]) -> str:
    """Return a table with a line per way: medians over turns, and the ratio to the path without TLS."""
    lines = [f"{title:16}" + "".join(f"{name:>9}" for name in (*PROCESSES, "all", "TLS/not"))]
    for name, costs in by_way.items():
        clear = by_way[name.removesuffix(", TLS")]
        ratio = median(now / was for was, now in zip(_all(clear), _all(costs), strict=True))
        values = [*(median(costs[process]) for process in PROCESSES), median(_all(costs))]
        lines.append(f"{name:16}" + "".join(f"{value:9.1f}" for value in values) + f"{ratio:9.2f}")
    return "\n".join(lines)


def _all(costs: Costs) -> list[float]:
    return [sum(turn) for turn in zip(*costs.values(), strict=True)]


if __name__ == "__main__":
    main()
