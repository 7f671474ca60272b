"""Processes of a run: started on a core, waited for, and stopped together.

Measured processes run on one core, engines and the client on another, if the machine has two.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from overhead.load import BadAnswer

MEASURED_CORE, OTHER_CORE = 0, min(1, (os.cpu_count() or 1) - 1)
START_S = 120.0


@dataclass(frozen=True, slots=True)
class EngineRoute:
    """One route to the engine: the URL for the client, and the processes in between by name.

    most_streams: most streams that it serves on one core.
    """

    name: str
    url: str
    pids: dict[str, int]
    most_streams: int = 2**16


class Started:
    """A child process with its log in a file."""

    def __init__(self, command: list[str | Path], core: int, log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait_for(self, pattern: str) -> str:
        """Wait until the log matches `pattern`, and return its first group."""
        deadline_s = time.monotonic() + START_S
        while time.monotonic() < deadline_s:
            found = re.search(pattern, self.log.read_text(errors="replace"))
            if found:
                return found[1]
            if self.process.poll() is not None:
                break
            time.sleep(0.02)
        raise SystemExit(f"{self.log.stem} did not start:\n{self.log.read_text(errors='replace')}")

    def stop(self) -> None:
        """Stop the process: SIGTERM, then SIGKILL."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class FastEngine(NamedTuple):
    """A running `fast_engine.py`."""

    address: str
    pid: int


class Machine:
    """Starts processes and stops them all, last first. folder: for their logs, files and sockets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = contextlib.ExitStack()

    def start(self, name: str, command: list[str | Path], core: int) -> Started:
        started = Started(command, core, self.folder / f"{name}.log")
        self.stack.callback(started.stop)
        return started

    def engine(
        self, name: str, step_ms: float, telemetry: Path | None, flags: Sequence[str] = ()
    ) -> FastEngine:
        """Start a fast engine. flags: further flags."""
        program = Path(__file__).with_name("fast_engine.py")
        reports: list[str | Path] = [] if telemetry is None else ["--telemetry", telemetry]
        command: list[str | Path] = [sys.executable, program, "--step-ms", str(step_ms), *reports, *flags]
        started = self.start(name, command, OTHER_CORE)
        return FastEngine("127.0.0.1:" + started.wait_for(r"ready (\d+)"), started.pid)


@contextlib.contextmanager
def machine(folder: Path) -> Iterator[Machine]:
    """Yield a machine; stop its processes afterwards, and print their logs if a request failed."""
    folder.mkdir(exist_ok=True)
    host = Machine(folder)
    with host.stack:
        try:
            yield host
        except BadAnswer as error:
            output = [
                f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in folder.glob("*.log")
            ]
            raise SystemExit("\n".join([*output, f"a request failed: {error}"])) from None


def wait_until_ready(url: str) -> None:
    """Wait until a URL answers with success."""
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{url} is not ready after {START_S:g} s: {error}") from None
            time.sleep(0.05)
