"""Runs tests on mutants, in copies of the tree, so that the working tree never changes.

First all tests of the package run without mutants: they must pass, and show which test runs which line. A
mutant is then judged by the tests that run its line. A line that no test runs in its own process (code that
runs at import, or in processes that tests start) is judged by the tests of its file, and if all of them pass,
by all of the package's tests.

A mutant is killed if a test fails, or if tests can no longer be collected. Any other end of pytest (an
interrupt, an internal error, a signal) gives no result: the trial is broken. If the tests take far longer
than without the mutant, it hangs, or the machine is busy. Neither is counted.

Compiled code is judged as the Python that it is written in: compiling a mutant takes longer than its tests,
and a cache of compiled code ignores changes of functions that it calls in other files.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Self

from coverage import CoverageData
from mutants.baseline import Baseline, RoundOfTests, Runs
from mutants.mutations import Mutant
from pytest import ExitCode

COMPILED = b"compilation.jit import"
"""Text that identifies a file with compiled code."""
COLLECTION_S = 300.0
"""Timeout of collecting tests."""

OURS = ("PYTEST_", "COV_CORE_")
"""Prefixes of environment variables of the outer test run, which mutants' tests must not inherit."""


class Verdict(StrEnum):
    """The result of a mutant's trial."""

    KILLED = "killed"
    SURVIVED = "survived"
    TIMED_OUT = "timed out"
    BROKEN = "broken"
    EQUIVALENT = "equivalent"


class RedBaseline(Exception):
    """The tests fail without a mutant."""


@dataclass(slots=True)
class Tree:
    """A copy of the tree. tests: the package's tests, whose libraries its fork servers import."""

    root: Path
    tests: Sequence[str]
    _servers: dict[bool, subprocess.Popen[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path, copy: Path, tests: Sequence[str]) -> Self:
        """Copy the files that git tracks or does not ignore, with valid compiled code."""
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
        return cls(copy, tests)

    def copied(self, copy: Path) -> Self:
        """Copy this tree with its bytecode."""
        shutil.copytree(self.root, copy, symlinks=True)
        return type(self)(copy, self.tests)

    def close(self) -> None:
        """End the processes that run tests."""
        for server in self._servers.values():
            server.communicate()

    def baseline(self, package: str, jobs: int) -> Baseline:
        """Run the tests without a mutant. Raises RedBaseline."""
        flags = [f"--cov={package}/src", "--cov-context=test", "--cov-report=", "-n", str(jobs)]
        code, seconds = self._pytest(RoundOfTests(self.tests, inf), *flags, bytecode=True)
        if code:
            raise RedBaseline((self.root / ".printed").read_text()[-4000:])
        return Baseline(self._runs(), seconds)

    def verdict(self, mutant: Mutant, rounds: Sequence[RoundOfTests]) -> Verdict:
        """Return the verdict of the tests on a mutant; a round runs only if all tests before it passed.

        The file is restored afterwards.
        """
        file = self.root / mutant.path
        source, written = file.read_bytes(), file.stat().st_mtime_ns
        interpreted = COMPILED in source
        self._server(interpreted)
        _write(file, mutant.applied(source), written + 10**9)
        try:
            for each in rounds:
                code, _ = self._pytest(each, "--exitfirst", interpreted=interpreted)
                if code is None:
                    return Verdict.TIMED_OUT
                if code == ExitCode.TESTS_FAILED:
                    return Verdict.KILLED
                if code != ExitCode.OK:
                    uncollectable = not self._collects(each.tests)
                    _write(file, source, written)
                    return Verdict.KILLED if uncollectable and self._collects(each.tests) else Verdict.BROKEN
        finally:
            _write(file, source, written)
        return Verdict.SURVIVED

    def _collects(self, tests: Sequence[str]) -> bool:
        return self._pytest(RoundOfTests(tests, COLLECTION_S), "--collect-only")[0] == ExitCode.OK

    def _pytest(
        self, group: RoundOfTests, *flags: str, interpreted: bool = False, bytecode: bool = False
    ) -> tuple[int | None, dict[str, float]]:
        """Return the exit code (None after a timeout) and the seconds of each test. bytecode: write it."""
        server = self._server(interpreted)
        assert server.stdin is not None and server.stdout is not None
        variables = {"PENSTOCK_PATIENCE_S": str(group.patience_s), "PYTHONDONTWRITEBYTECODE": "1"}
        request = {
            "arguments": [*flags, *group.tests],
            "timeout_s": None if bytecode else group.bound_s,
            "output": str(self.root / ".printed"),
            "environment": {} if bytecode else variables,
        }
        print(json.dumps(request), file=server.stdin, flush=True)
        answer = json.loads(server.stdout.readline())
        return answer["code"], answer["seconds"]

    def _server(self, interpreted: bool) -> subprocess.Popen[str]:
        """Start the process whose forks run the tests. interpreted: without compiled code."""
        if interpreted not in self._servers:
            outer = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
            python = {"NUMBA_DISABLE_JIT": "1"} if interpreted else {}
            server = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("fork_server.py")), *self.tests],
                cwd=self.root,
                env={**outer, "GRPC_VERBOSITY": "ERROR", **python},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            assert server.stdout is not None
            server.stdout.readline()
            self._servers[interpreted] = server
        return self._servers[interpreted]

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


def _write(file: Path, text: bytes, modified_ns: int) -> None:
    """Write a file with this modification time, which determines whether its bytecode is valid."""
    file.write_bytes(text)
    os.utime(file, ns=(modified_ns, modified_ns))
