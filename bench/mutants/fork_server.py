"""Runs pytest in forks of one process, which has already imported the libraries that the tests need.

Starting Python and importing libraries takes longer than most tests. Each fork imports
the tree's own modules, so it runs the current files, and so do the processes that its tests start.

It prints a line when it is ready. A request is a line of JSON on standard input: pytest's arguments, the
timeout in seconds or null, the file for its output, and environment variables. The answer is a line on
standard output: pytest's exit code, negative for the signal that ended it, or null after a timeout; and the
seconds of each test that ended.
"""

import json
import os
import select
import signal
import sys
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import pytest

OUTSIDE = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
QUIET = ("-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")
"""Suppresses the warning about imported plug-ins, whose assertions pytest cannot rewrite."""


class Seconds:
    """A plug-in of pytest that measures the duration of each test with its fixtures."""

    def __init__(self) -> None:
        self.by_test: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.by_test[report.nodeid] = self.by_test.get(report.nodeid, 0.0) + report.duration


def main() -> None:
    sys.path[0] = str(Path.cwd())  # as `python -m pytest` has it
    preload(sys.argv[1:])
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        answer = run(
            request["arguments"], request["timeout_s"], Path(request["output"]), request["environment"]
        )
        print(json.dumps(answer), flush=True)


def preload(tests: list[str]) -> None:
    """Import the modules from outside the tree that collecting these tests imports."""

    def names() -> object:
        pytest.main(["--collect-only", *QUIET, *tests])
        return [name for name, module in list(sys.modules.items()) if _is_outside(module)]

    _, found = forked(names, None, Path(".preload"))
    for name in found if isinstance(found, list) else ():
        with suppress(Exception):  # a fork that needs it imports it
            import_module(name)


def run(
    arguments: list[str], timeout_s: float | None, output: Path, environment: Mapping[str, str]
) -> dict[str, object]:
    """Run pytest in a fork, and end all processes of its group afterwards."""

    def tests() -> object:
        os.environ.update(environment)
        sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
        seconds = Seconds()
        code = int(pytest.main([*QUIET, *arguments], plugins=[seconds]))
        return {"code": code, "seconds": seconds.by_test}

    status, returned = forked(tests, timeout_s, output)
    if isinstance(returned, dict):
        return returned
    ended_itself = status is not None and status >= 0
    return {"code": int(pytest.ExitCode.INTERNAL_ERROR) if ended_itself else status, "seconds": {}}


def forked(work: Callable[[], object], timeout_s: float | None, output: Path) -> tuple[int | None, object]:
    """Run `work` in a fork. Returns the exit status (None after a timeout) and the result of `work`.

    output: file for the output of `work`; its result is written to a JSON file with the same stem.
    """
    result = output.with_name(output.name + ".json")
    result.unlink(missing_ok=True)
    pid = os.fork()
    if pid == 0:
        _do(work, output, result)
    with suppress(OSError):  # the fork does the same, so that the group exists for both
        os.setpgid(pid, pid)
    ended = _ends(pid, timeout_s)
    os.killpg(pid, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    returned = json.loads(result.read_text()) if ended and result.exists() else None
    return status if ended else None, returned


def _do(work: Callable[[], object], output: Path, result: Path) -> NoReturn:
    try:
        os.setpgid(0, 0)
        nothing = os.open(os.devnull, os.O_RDONLY)
        printed = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for number, descriptor in enumerate((nothing, printed, printed)):
            os.dup2(descriptor, number)
        returned = json.dumps(work())
        partial = result.with_name(result.name + ".partial")
        partial.write_text(returned)
        partial.rename(result)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # without the exit handlers of its parent


def _ends(pid: int, timeout_s: float | None) -> bool:
    """Wait for a process. Returns whether it ended in time."""
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _is_outside(module: ModuleType) -> bool:
    """Return whether a module is a library's or Python's."""
    return (getattr(module, "__file__", None) or "").startswith(OUTSIDE)


if __name__ == "__main__":
    main()
