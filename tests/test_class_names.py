"""Two public classes share a name only if they are the same thing."""

import ast
import subprocess
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

SHARED = {
    "Metrics": "the metrics of a process, in each process that exports any",
    "Options": "the command line of a process, in each process that has one",
}
"""Names that several classes may have, and the one thing that they are."""


def homes() -> dict[str, list[str]]:
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*/src/*.py", ":!proto"]
    paths = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    found = defaultdict(list)
    for path in paths:
        if (ROOT / path).exists():
            for node in ast.parse((ROOT / path).read_text()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found[node.name].append(path)
    return found


def test_public_classes_have_names_of_their_own() -> None:
    several = {name: paths for name, paths in homes().items() if len(paths) > 1 and name not in SHARED}
    assert several == {}


def test_every_shared_name_is_needed() -> None:
    found = homes()
    assert [name for name in SHARED if len(found[name]) < 2] == []
