"""One operating-system process of a pool, started by its console script, its log in a file."""

import re
import signal
import subprocess
import sys
from pathlib import Path

from live.waiting import PATIENCE_S, until

BIN = Path(sys.executable).parent
READY = re.compile(r"^(?=.*\bevent=ready\b).*\baddress=(127\.0\.0\.1:\d+)", re.MULTILINE)


class Process:
    """A child. `address` is where it serves, known once it is ready."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.command, self.log = name, command, log
        self.address = ""
        with log.open("ab") as out:
            self._child = subprocess.Popen([BIN / command[0], *command[1:]], stdout=out, stderr=out)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child.poll() is None

    @property
    def said(self) -> str:
        """Everything it has printed."""
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> str:
        """Its address, once it says that it is ready."""

        def ready() -> re.Match[str] | None:
            if self._child.poll() is not None:
                raise AssertionError(f"{self.name} exited {self._child.returncode}:\n{self.said}")
            return READY.search(self.said)

        self.address = until(ready, f"{self.name} ready")[1]
        return self.address

    def ask_to_stop(self) -> None:
        """SIGTERM, as every supervisor sends it."""
        self._child.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Its exit code, once it has ended."""
        try:
            return self._child.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not stop within {PATIENCE_S:g} s:\n{self.said}") from None

    def kill(self) -> None:
        """SIGKILL: gone without a word."""
        self._child.kill()
        self._child.wait()
