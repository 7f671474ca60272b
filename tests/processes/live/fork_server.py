"""Processes forked from one that has read their code already: for tests that need many.

What runs is what the console scripts run, in processes of their own; only the reading of modules is shared,
which is nearly all of a start. Run as a program, this file is the process that forks: it reads a line of JSON
for each thing it is asked, and answers with a line.
"""

import importlib
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from live.process import Started

MAINS = {
    "penstock-engine": "penstock_simulator.main",
    "penstock-sidecar": "penstock_sidecar.main",
    "penstock-router": "penstock_router.main",
}


class ForkServer:
    """Call it to start a process, as `Process` is called."""

    def __init__(self) -> None:
        tests = Path(__file__).parents[2]
        own = [str(tests / "processes"), str(tests / "common")]
        folders = [*own, *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
        self._forker = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __call__(self, name: str, command: list[str], log: Path) -> "Forked":
        log.touch()
        return Forked(self, self.ask([*command, str(log)]), name, command, log)

    def ask(self, asked: list[str] | int) -> Any:
        """A command and its log, for the process's id; an id, for its exit code or None."""
        reported, hears = self._forker.stdin, self._forker.stdout
        assert reported is not None and hears is not None
        print(json.dumps(asked), file=reported, flush=True)
        return json.loads(hears.readline())

    def close(self) -> None:
        """End the process and its children."""
        self._forker.communicate()


class Forked(Started):
    """A child of the process that forks."""

    def __init__(self, fork_server: ForkServer, pid: int, name: str, command: list[str], log: Path) -> None:
        super().__init__(name, command, log)
        self.pid, self._fork_server, self._code = pid, fork_server, None

    def poll(self) -> int | None:
        if self._code is None:
            self._code = self._fork_server.ask(self.pid)
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self.alive:
            os.kill(self.pid, number)


def _serve() -> None:
    mains: dict[str, Any] = {name: importlib.import_module(where).main for name, where in MAINS.items()}
    pids: set[int] = set()
    for line in sys.stdin:
        asked = json.loads(line)
        if isinstance(asked, int):
            answer = _ended(asked)
        else:
            program, *arguments, log = asked
            answer = os.fork() or _become(mains[program], arguments, log)
            pids.add(answer)
        print(json.dumps(answer), flush=True)
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ended(pid: int) -> int | None:
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _become(main: Any, arguments: list[str], log: str) -> int:
    """Never returns."""
    out, nothing = os.open(log, os.O_WRONLY | os.O_APPEND), os.open(os.devnull, os.O_RDONLY)
    for old, new in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(old, new)
    try:
        code = main(arguments)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
