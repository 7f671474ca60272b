"""Mutation testing: how many small changes of the sources the tests detect, and which they do not.

  make bench-mutants SINCE=main                   mutants of the lines that differ from a revision
  make bench-mutants SAMPLE=50 SEED=7             this many of each package, drawn by a seed
  make bench-mutants PACKAGES="core router" EXCLUDE="policies/sola routing/orders" JOBS=4

  make bench-mutants SAMPLE=40 SEED=8 KEEP=yes    record the result, for a sample that no test was written for

The goal is that tests kill 95 % of the judged mutants. Each survivor is printed: a test is missing, the code
is redundant, or the change makes no difference (rare, and marked in `equivalent.toml`). Marked mutants, and
those whose tests timed out or failed to run, are printed separately and not counted.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from os import cpu_count
from pathlib import Path
from queue import SimpleQueue

from mutants.equivalent import marked, marks_of
from mutants.mutations import Mutant
from mutants.selection import changed_lines, of_package, sampled
from mutants.trial import RedBaseline, Tree, Verdict

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "mutants.json"
GOAL = 0.95

TESTS = {
    "core": ("tests/core",),
    "pool": ("tests/pool",),
    "proto": ("tests/vllm_parts/test_vllm_report_socket.py",),
    "runtime": ("tests/runtime",),
    "profiler": ("tests/profiler",),
    "simulator": ("tests/simulator", "tests/simulation"),
    "router": ("tests/router",),
    "routing": (
        "tests/router",
        "tests/processes/test_redis_limits.py",
        "tests/processes/test_redis_placements.py",
    ),
    "picker": ("tests/picker",),
    "replica-sidecar": ("tests/sidecar",),
    "operator": ("tests/operator",),
    "cli": ("tests/cli",),
    "vllm-plugin": ("tests/vllm_parts", "tests/vllm_plugin"),
}
"""Package -> its own tests, fast ones first. Tests of other packages do not count."""

Judged = list[tuple[Mutant, Verdict]]


def main() -> int:
    """Run the probe; exit code 0 if every package meets the goal, 2 if a package's tests fail unmutated."""
    options = _options()
    marks, revision = marks_of(), _revision()
    found: dict[str, Judged] = {}
    red = False
    for package in options.packages:
        mutants = _chosen(package, options)
        if not mutants:
            continue
        print(f"{package}: {len(mutants)} mutants", flush=True)
        of_this = [mark for mark in marks if mark.file.startswith(f"{package}/")]
        equivalent = marked(ROOT, of_package(ROOT, package), of_this)
        try:
            found[package] = judged(
                ROOT, package, TESTS[package], mutants, options.jobs, equivalent=equivalent
            )
            print(summary(package, found[package]), flush=True)
        except RedBaseline as error:
            red = True
            print(f"{package}: the tests are red without any mutant\n{error}", file=sys.stderr)
        if options.keep:
            _write(options, found, revision)
    print(summary("all", [each for of in found.values() for each in of]))
    return 2 if red else int(any(score(of) < GOAL for of in found.values()))


def judged(
    root: Path,
    package: str,
    tests: Sequence[str],
    mutants: Sequence[Mutant],
    jobs: int,
    *,
    equivalent: Collection[Mutant] = (),
) -> Judged:
    """Return the verdict on each mutant. jobs: mutants tried at a time. equivalent: mutants not tried."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-mutants-"))
        pool = stack.enter_context(ThreadPoolExecutor(jobs))
        trees: SimpleQueue[Tree] = SimpleQueue()
        first = Tree.of(root, Path(folder) / "0", tests)
        stack.callback(first.close)
        baseline = first.baseline(package, jobs)
        copies = [first.copied(Path(folder) / str(number)) for number in range(1, jobs)]
        for copy in copies:
            stack.callback(copy.close)
        for tree in (first, *copies):
            trees.put(tree)

        def tried(mutant: Mutant) -> Verdict:
            tree = trees.get()
            try:
                return tree.verdict(mutant, baseline.rounds_for(mutant, tests))
            finally:
                trees.put(tree)

        def judge(mutant: Mutant) -> tuple[Mutant, Verdict]:
            verdict = Verdict.EQUIVALENT if mutant in equivalent else tried(mutant)
            if verdict is not Verdict.KILLED:
                print(f"  {verdict}: {mutant}", flush=True)
            return mutant, verdict

        return list(pool.map(judge, mutants))


def score(found: Judged) -> float:
    """Return the share of judged mutants that tests killed; 1 if none was judged."""
    killed, survived = len(_with(found, Verdict.KILLED)), len(_with(found, Verdict.SURVIVED))
    return killed / (killed + survived) if killed + survived else 1.0


def summary(package: str, found: Judged) -> str:
    """Return a line with the numbers of mutants killed, judged and not judged."""
    killed, survived, timed_out, broken, equivalent = (len(_with(found, verdict)) for verdict in Verdict)
    of = f"{package}: {killed} of {killed + survived} killed, {score(found):.1%}"
    return f"{of}; not judged: {timed_out} timed out, {broken} broken, {equivalent} equivalent"


def _with(found: Judged, verdict: Verdict) -> list[str]:
    return [str(mutant) for mutant, of in found if of is verdict]


def _chosen(package: str, options: argparse.Namespace) -> list[Mutant]:
    mutants = of_package(ROOT, package, options.exclude)
    if options.since:
        changed = changed_lines(ROOT, options.since)
        mutants = [mutant for mutant in mutants if mutant.line in changed.get(mutant.path, ())]
    return sampled(mutants, options.sample, options.seed) if options.sample else mutants


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("packages", nargs="*", default=list(TESTS), choices=list(TESTS), metavar="PACKAGE")
    add("--exclude", nargs="+", default=[], metavar="PART", help="exclude paths that contain one of these")
    add("--since", help="only lines that differ from this revision")
    add("--sample", type=int, default=0, metavar="N", help="at most this many of each package")
    add("--seed", type=int, default=1, help="seed of the sample")
    add("--jobs", type=int, default=cpu_count() or 1, help="mutants tried at once")
    add(
        "--keep",
        action="store_true",
        help=f"write {RESULTS.relative_to(ROOT)}: of a fresh sample, that no test was written for",
    )
    return parser.parse_args()


def _revision() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def _write(options: argparse.Namespace, found: dict[str, Judged], revision: str) -> None:
    before = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for package, of in found.items():
        before[package] = {
            "revision": revision,
            "since": options.since,
            "exclude": options.exclude,
            "sample": options.sample,
            "seed": options.seed,
            "mutants": len(of),
            "killed": len(_with(of, Verdict.KILLED)),
            "survivors": _with(of, Verdict.SURVIVED),
            "timed_out": _with(of, Verdict.TIMED_OUT),
            "broken": _with(of, Verdict.BROKEN),
            "equivalent": _with(of, Verdict.EQUIVALENT),
            "fresh": True,
        }
    RESULTS.write_text(json.dumps(before, indent=2, sort_keys=True) + "\n")


if __name__ == "__main__":
    sys.exit(main())
