"""How well faults are contained, in figures beside their goals: `make bench-containment`.

    make bench-containment                        all of it; ten minutes of overload
    make bench-containment MINUTES=1              a shorter overload
    make bench-containment BASELINE=../before     and what containment costs beside that checkout
    make bench-containment ONLY="cost bodies"     some parts; nothing is written then

Overload says what a machine can do that keeps real time for simulated engines: run it on a quiet one.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from containment import contained, cost, keys, overload
from containment.report import Row, page
from overhead.deployments import OTHER_CORE

RESULTS = Path(__file__).resolve().parents[1] / "results" / "containment.md"
NOTES = """\
Bodies that once did harm come first, the others are made by a seed. Streams are those of a simulated engine,
of which each byte is known. The overloaded pool has two replicas of eight slots each; clients that read
nothing ask for 1,500 tokens, `router.writeTimeout` is 5 s. Costs are CPU times of router and sidecar by the
kernel, of two checkouts that take turns in one run; their ratio is what counts."""


def main() -> int:
    """The exit code: 0 if every goal was met."""
    options = _options()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="penstock-containment-") as name:
        for part, measure in _parts(options).items():
            folder = Path(name) / part
            folder.mkdir()
            rows += measure(folder)
    if options.out:
        options.out.write_text(page(rows, NOTES.splitlines(), f"make bench-containment{_given(options)}"))
    return 0 if all(row.met is not False for row in rows) else 1


def _parts(options: argparse.Namespace) -> dict[str, Callable[[Path], Sequence[Row]]]:
    parts: dict[str, Callable[[Path], Sequence[Row]]] = {
        "bodies": lambda folder: contained.measured(folder, options.seed),
        "keys": keys.measured,
        "overload": lambda folder: overload.measured(folder, options.minutes),
        "cost": lambda folder: _cost(folder, options),
    }
    return {name: part for name, part in parts.items() if name in (options.only or parts)}


def _cost(folder: Path, options: argparse.Namespace) -> Sequence[Row]:
    if options.baseline is None:
        print("cost: left out; BASELINE=FOLDER names a checkout to compare with", file=sys.stderr)
        return ()
    os.sched_setaffinity(0, {OTHER_CORE})
    return cost.measured(folder, options.baseline.resolve(), options.rounds)


def _given(options: argparse.Namespace) -> str:
    return f" MINUTES={options.minutes:g}" if options.minutes != 10 else ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10, help="of overload (default %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of hostile bodies (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="of the comparison (default %(default)s)")
    parser.add_argument("--baseline", type=Path, help="a checkout with its .venv, to compare costs with")
    parser.add_argument("--only", nargs="*", choices=("bodies", "keys", "overload", "cost"), default=())
    parser.add_argument("--out", type=Path, help=f"write the page there, like {RESULTS.name}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
