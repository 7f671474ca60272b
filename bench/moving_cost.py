"""Measures the cost of movable streams: CPU per streamed token with `routing.maxMoves` 2 and 0, in one run.

Two pools of the same programs (router, sidecar, an engine that answers at once) stream at the same time, so
that other load on the machine slows both down. In one pool the engine reports token ids, which the router
removes from each event and stores. CPU is read from the kernel.
"""

import argparse
import asyncio
import os
import tempfile
from pathlib import Path
from statistics import median

from overhead import measures, report
from overhead.deployments import POOL, penstock
from overhead.machine import OTHER_CORE, machine
from overhead.measures import Measurements

MOVES = {"cannot move": 0, "can move": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="number of windows (default %(default)s)")
    parser.add_argument("--streams", type=int, default=128, help="streams of each pool (default %(default)s)")
    parser.add_argument(
        "--window-s", type=float, default=10.0, help="seconds of a window (default %(default)s)"
    )
    parser.add_argument(
        "--step-ms", type=float, default=30.0, help="milliseconds between tokens (default %(default)s)"
    )
    parser.add_argument("--out", type=Path, help="also write the output to this file")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    results = asyncio.run(measured(options))
    measure = f"{options.streams} streams of each, {options.rounds} windows of {options.window_s:g} s"
    text = "\n".join([report.machine(), measure, "", *rows(results)])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


async def measured(options: argparse.Namespace) -> dict[str, Measurements]:
    results = {name: Measurements() for name in MOVES}
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder)) as host:
        ways = {}
        for name, moves in MOVES.items():
            pool = f"{POOL}  routing: {{maxMoves: {moves}}}\n"
            ways[name] = penstock(host, options.step_ms, name.replace(" ", "-"), pool_text=pool)
        for _ in range(options.rounds):
            windows = (
                measures.tokens(way, results[name].token_cpu_us, options.streams, options.window_s)
                for name, way in ways.items()
            )
            await asyncio.gather(*windows)
    return results


def rows(results: dict[str, Measurements]) -> list[str]:
    """Return a line per process and one for both: medians over windows, and of the windows' ratios."""
    fixed, moves = (results[name].token_cpu_us for name in MOVES)
    both = [[sum(turn) for turn in zip(*one.values(), strict=True)] for one in (fixed, moves)]
    costs = {name: (fixed[name], moves[name]) for name in fixed} | {"both": (both[0], both[1])}
    title = f"{'CPU per streamed token, us':28}{'cannot move':>12}{'can move':>10}{'ratio':>8}"
    lines = [f"{title}  least to most"]
    for name, (before, after) in costs.items():
        ratios = [now / was for was, now in zip(before, after, strict=True)]
        spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
        lines.append(f"{name:28}{median(before):12.2f}{median(after):10.2f}{median(ratios):8.3f}  {spread}")
    return lines


if __name__ == "__main__":
    main()
