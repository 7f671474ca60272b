"""One operating-system process of a pool, its log in a file."""

import re
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from pathlib import Path

from patience import PATIENCE_S, until

BIN = Path(sys.executable).parent
READY = re.compile(r"^(?=.*\bevent=ready\b).*\baddress=(127\.0\.0\.1:\d+)", re.MULTILINE)

ADMIN = re.compile(r"\badmin=(127\.0\.0\.1:\d+)")


class Started(ABC):
    """A process. address: where it serves; admin: a router's admin port. Both are known once it is ready."""

    pid: int

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.command, self.log = name, command, log
        self.address, self.admin = "", ""

    @abstractmethod
    def poll(self) -> int | None:
        """Its exit code; None while it runs."""

    @abstractmethod
    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""

    @property
    def alive(self) -> bool:
        return self.poll() is None

    @property
    def printed_text(self) -> str:
        """Everything it has printed."""
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> str:
        """Return its address once it logs that it is ready."""

        def ready() -> re.Match[str] | None:
            if not self.alive:
                raise AssertionError(f"{self.name} exited {self.poll()}:\n{self.printed_text}")
            return READY.search(self.printed_text)

        line = until(ready, f"{self.name} ready")
        admin = ADMIN.search(line.string, line.start())
        self.address, self.admin = line[1], admin[1] if admin else ""
        return self.address

    def ask_to_stop(self) -> None:
        """SIGTERM, as every supervisor sends it."""
        self.signal(signal.SIGTERM)

    def exit_code(self) -> int:
        """Its exit code, once it has ended."""
        until(lambda: not self.alive, f"{self.name} stopped; it said:\n{self.printed_text}", PATIENCE_S)
        code = self.poll()
        assert code is not None
        return code

    def kill(self) -> None:
        """SIGKILL: gone without a word."""
        self.signal(signal.SIGKILL)
        until(lambda: not self.alive, f"{self.name} gone")


class Process(Started):
    """A child, started by its console script."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        super().__init__(name, command, log)
        with log.open("ab") as out:
            self._child = subprocess.Popen([BIN / command[0], *command[1:]], stdout=out, stderr=out)
        self.pid = self._child.pid

    def poll(self) -> int | None:
        return self._child.poll()

    def signal(self, number: signal.Signals) -> None:
        self._child.send_signal(number)
