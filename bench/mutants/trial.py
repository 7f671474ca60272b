"""Runs tests on mutants, in copies of the tree: the tree that people work in never changes.

First all tests of the package run as they are: they have to be green, and tell which test runs which line. A
mutant is then judged by the tests that run its line. A line that no test runs in its own process (what a
module does when it is imported, processes that tests start) is judged by the tests of its file, and if none
of them notices, by all of the package's tests.

A mutant is killed where a test fails, or where tests can be collected without it and not with it. Any other
end of pytest (an interrupt, an internal error, a signal) says nothing about the mutant: it is broken. One
whose tests take too long hangs, or the machine is busy. Neither is counted.

Compiled code is judged as the Python that it is written in: compiling a mutant takes longer than its tests,
and a cache of compiled code does not notice changes of what it calls in other files.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from coverage import CoverageData
from mutants.mutations import Mutant
from pytest import ExitCode

BOUND_S = 300.0
"""A mutant whose tests take longer is not judged."""
COMPILED = b"compilation.jit import"
"""What a file with compiled code has in it."""

OURS = ("PYTEST_", "COV_CORE_")
"""Beginnings of variables by which a run of tests speaks to its own processes: these are others."""
MANY = 200
"""More tests than these are named by their files."""

Runs = Mapping[str, Mapping[int, frozenset[str]]]
"""Path -> line -> the tests that run it."""


class Verdict(StrEnum):
    """What became of a mutant."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"
    BROKEN = "broken"


class RedBaseline(Exception):
    """The tests fail without any mutant."""


class Tree:
    """A copy of the files that git knows or would take, with compiled code that is still good."""

    def __init__(self, root: Path, copy: Path) -> None:
        self.root = copy
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout.split("\0")
        compiled = [str(path.relative_to(root)) for path in root.glob("*/src/**/__pycache__/*.nb?")]
        for name in (*filter(None, listed), *compiled):
            if (root / name).is_file() and not name.startswith("bench/results/"):
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(root / name, copy / name)

    def baseline(self, package: str, tests: Sequence[str], jobs: int) -> Runs:
        """Run the tests as they are. Raises RedBaseline."""
        flags = [f"--cov={package}/src", "--cov-context=test", "--cov-report=", "-n", str(jobs)]
        done = self._pytest(*flags, *tests, timeout_s=None)
        if done.returncode:
            raise RedBaseline(done.stdout[-4000:])
        return self._runs()

    def verdict(self, mutant: Mutant, rounds: Sequence[Sequence[str]], bound_s: float = BOUND_S) -> Verdict:
        """What the tests say of a mutant, each round only where those before noticed nothing.

        The file is as it was afterwards.
        """
        file = self.root / mutant.path
        source = file.read_bytes()
        file.write_bytes(mutant.applied(source))
        interpreted = {"NUMBA_DISABLE_JIT": "1"} if COMPILED in source else {}
        try:
            for tests in rounds:
                done = self._pytest("--exitfirst", *tests, timeout_s=bound_s, more=interpreted)
                if done.returncode == ExitCode.TESTS_FAILED:
                    return Verdict.KILLED
                if done.returncode != ExitCode.OK:
                    spoilt = not self._collects(tests)
                    file.write_bytes(source)
                    return Verdict.KILLED if spoilt and self._collects(tests) else Verdict.BROKEN
        except subprocess.TimeoutExpired:
            return Verdict.TIMED_OUT
        finally:
            file.write_bytes(source)
        return Verdict.SURVIVED

    def _collects(self, tests: Sequence[str]) -> bool:
        return self._pytest("--collect-only", *tests, timeout_s=BOUND_S).returncode == ExitCode.OK

    def _pytest(
        self, *arguments: str, timeout_s: float | None, more: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        asked = self.root / ".asked"
        asked.write_text("\n".join(arguments))
        outer = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        environment = {**outer, "PYTHONDONTWRITEBYTECODE": "1", "GRPC_VERBOSITY": "ERROR", **(more or {})}
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"@{asked}"]
        return subprocess.run(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def _runs(self) -> Runs:
        data = CoverageData(str(self.root / ".coverage"))
        data.read()
        return {
            str(Path(file).relative_to(self.root)): {
                line: frozenset(context.rpartition("|")[0] for context in contexts if "|" in context)
                for line, contexts in data.contexts_by_lineno(file).items()
            }
            for file in data.measured_files()
        }


def rounds_for(mutant: Mutant, runs: Runs, of_package: Sequence[str]) -> list[list[str]]:
    """The tests that judge a mutant: those that run its line, or those of its file and then all.

    of_package: the package's folders of tests, in the order in which they are asked: quick ones first.
    """
    lines = runs.get(mutant.path, {})
    if names := lines.get(mutant.line):
        return _by_folder(names, of_package)
    of_file = frozenset[str]().union(*lines.values())
    return [*_by_folder(of_file, of_package), *([folder] for folder in of_package)]


def _by_folder(names: frozenset[str], folders: Sequence[str]) -> list[list[str]]:
    """A round for each folder that has some of these tests."""
    rounds = ([name for name in names if name.startswith(folder)] for folder in folders)
    return [_named(frozenset(found)) for found in rounds if found]


def _named(names: frozenset[str]) -> list[str]:
    """Tests by their names, or, where they are many, by their files."""
    return sorted({name.partition("::")[0] for name in names} if len(names) > MANY else names)
