"""What it costs that streams can move: CPU per streamed token with `routing.maxMoves` 2 and 0, in one run.

Two pools of the same programs (router, sidecar, an engine that answers at once) take turns. In the one the
engine reports token ids, which the router takes out of each event and keeps. CPU is read from the kernel.
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
from overhead.measures import Seen

MOVES = {"cannot move": 0, "can move": 2}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="turns of each (default %(default)s)")
    parser.add_argument("--streams", type=int, default=256, help="(default %(default)s)")
    parser.add_argument("--window-s", type=float, default=5.0, help="of streaming (default %(default)s)")
    parser.add_argument("--step-ms", type=float, default=30.0, help="between tokens (default %(default)s)")
    parser.add_argument("--out", type=Path, help="write what is printed to this file too")
    options = parser.parse_args()
    os.sched_setaffinity(0, {OTHER_CORE})
    seen = asyncio.run(measured(options))
    head = f"{report.machine()}\n{options.streams} streams, {options.rounds} rounds of {options.window_s:g} s"
    text = "\n".join([head, "", *rows(seen)])
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


async def measured(options: argparse.Namespace) -> dict[str, Seen]:
    seen = {name: Seen() for name in MOVES}
    with tempfile.TemporaryDirectory() as folder, machine(Path(folder)) as here:
        ways = {}
        for name, moves in MOVES.items():
            pool = f"{POOL}  routing: {{maxMoves: {moves}}}\n"
            ways[name] = penstock(here, options.step_ms, name.replace(" ", "-"), pool_text=pool)
        for turn in range(options.rounds):
            order = list(ways) if turn % 2 else list(reversed(ways))
            for name in order:
                await measures.tokens(ways[name], seen[name].token_cpu_us, options.streams, options.window_s)
    return seen


def rows(seen: dict[str, Seen]) -> list[str]:
    """A line per process, and one for both: medians over rounds, and the ratio."""
    fixed, moves = (seen[name].token_cpu_us for name in MOVES)
    both = [[sum(turn) for turn in zip(*one.values(), strict=True)] for one in (fixed, moves)]
    costs = {name: (fixed[name], moves[name]) for name in fixed} | {"both": (both[0], both[1])}
    lines = [f"{'CPU per streamed token, us':28}{'cannot move':>12}{'can move':>10}{'ratio':>8}"]
    for name, (before, after) in costs.items():
        was, now = median(before), median(after)
        lines.append(f"{name:28}{was:12.2f}{now:10.2f}{now / was:8.3f}")
    return lines


if __name__ == "__main__":
    main()
