"""Selects the mutants to try: those of changed lines, or a seeded sample."""

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from mutants.mutations import Mutant, mutants_of

HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@")


def of_package(root: Path, package: str, exclude: Sequence[str] = ()) -> list[Mutant]:
    """Return every mutant of a package. package: its folder. exclude: parts of excluded paths."""
    files = sorted(
        path
        for path in (root / package / "src").rglob("*.py")
        if not re.search(r"_pb2(_grpc)?\.py$", path.name)
    )
    paths = [str(path.relative_to(root)) for path in files]
    chosen = [path for path in paths if not any(part in path for part in exclude)]
    return [mutant for path in chosen for mutant in mutants_of(path, (root / path).read_bytes())]


def changed_lines(root: Path, since: str) -> Mapping[str, set[int]]:
    """Return path -> lines of the working tree that differ from this revision."""
    command = ["git", "diff", "--unified=0", "--no-color", "--no-ext-diff", since, "--", "*/src/*.py"]
    reported = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout
    changed: dict[str, set[int]] = {}
    for line in reported.splitlines():
        if line.startswith("+++ b/"):
            lines = changed.setdefault(line.removeprefix("+++ b/"), set())
        elif found := HUNK.match(line):
            first, count = int(found[1]), int(found[2] or 1)
            lines.update(range(first, first + count))
    return changed


def sampled(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return a sample of `count` mutants in their order, the same for equal seeds."""
    return sorted(Random(seed).sample(mutants, min(count, len(mutants))))
