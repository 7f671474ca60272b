"""Measures how well faults are contained, and compares the figures with their goals.

    make bench-containment                        everything; ten minutes of overload
    make bench-containment MINUTES=1              a shorter overload
    make bench-containment BASELINE=../before     and the cost of containment compared with that checkout
    make bench-containment ONLY="cost bodies"     some parts; their rows replace those in bench/results

The simulated engines of the overload part must run in real time: use an otherwise idle machine.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from containment import cost, hostile_bodies, keys, overload
from containment.report import GoalRow, keep, page
from overhead.machine import OTHER_CORE

RESULTS = Path(__file__).resolve().parents[1] / "results"
HEADS = {
    "bodies": (
        "Bodies",
        "Bodies that once did harm come first, others are made by a seed. Each byte of the streams is known.",
    ),
    "keys": ("Keys and limits", "Each request takes longer than all of them take to arrive."),
    "overload": (
        "Overload",
        "Two replicas of eight slots each, so that simulated engines keep real time on a small machine. "
        "Clients that read nothing ask for 1,500 tokens; `router.writeTimeout` is 5 s.",
    ),
    "cost": (
        "Cost",
        "CPU time of router and sidecar, compared with a checkout from before containment. "
        "Both take turns in one run; the ratio is the median over the rounds' pairs.",
    ),
}


def main() -> int:
    """Run the bench, and return the exit code: 0 if every goal was met."""
    options = _options()
    met = True
    with tempfile.TemporaryDirectory(prefix="penstock-containment-") as name:
        for part, measure in _parts(options).items():
            folder = Path(name) / part
            folder.mkdir()
            rows = measure(folder)
            met &= all(row.met is not False for row in rows)
            if rows:
                parts = keep(RESULTS / "containment.json", part, rows)
                (RESULTS / "containment.md").write_text(page(parts, HEADS))
    return 0 if met else 1


def _parts(options: argparse.Namespace) -> dict[str, Callable[[Path], Sequence[GoalRow]]]:
    parts: dict[str, Callable[[Path], Sequence[GoalRow]]] = {
        "bodies": lambda folder: hostile_bodies.measured(folder, options.seed),
        "keys": keys.measured,
        "overload": lambda folder: overload.measured(folder, options.minutes),
        "cost": lambda folder: _cost(folder, options),
    }
    return {name: part for name, part in parts.items() if name in (options.only or parts)}


def _cost(folder: Path, options: argparse.Namespace) -> Sequence[GoalRow]:
    if options.baseline is None:
        print("cost: left out; BASELINE=FOLDER names a checkout to compare with", file=sys.stderr)
        return ()
    os.sched_setaffinity(0, {OTHER_CORE})
    return cost.measured(folder, options.baseline.resolve(), options.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="minutes of overload (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of hostile bodies (default %(default)s)")
    parser.add_argument(
        "--rounds", type=int, default=8, help="rounds of the cost comparison (default %(default)s)"
    )
    parser.add_argument("--baseline", type=Path, help="checkout with a .venv to compare costs with")
    parser.add_argument("--only", nargs="*", choices=("bodies", "keys", "overload", "cost"), default=())
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
