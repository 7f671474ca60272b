"""An operator as a real process, started, asked, killed and stopped by tests."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from operating.eventually import eventually

IMAGES = {
    f"PENSTOCK_{name}_IMAGE": f"localhost/penstock/{name.lower().replace('_', '-')}:dev"
    for name in ("ROUTER", "PICKER", "ENVOY", "SIDECAR", "SIMULATOR", "VLLM", "VLLM_PLUGIN")
}
STOP_S = 30


class OperatorProcess:
    """One `penstock-operator`. log: where its standard error goes."""

    def __init__(
        self, kubeconfig: Path, log: Path, *flags: str, environment: dict[str, str] | None = None
    ) -> None:
        self._log = log
        command = [sys.executable, "-m", "penstock_operator.main", "--host=127.0.0.1", "--port=0", *flags]
        inherited = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        with log.open("ab") as sink:
            self.process = subprocess.Popen(
                command,
                env=inherited | IMAGES | {"KUBECONFIG": str(kubeconfig)} | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    def printed_text(self) -> str:
        """Its log so far."""
        return self._log.read_text()

    def ready(self) -> "OperatorProcess":
        """This operator, once it serves."""
        eventually(self._address)
        return self

    def page(self, path: str) -> httpx2.Response:
        """One of its pages."""
        return httpx2.get(f"http://{self._address()}{path}", timeout=STOP_S, trust_env=False)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over its labels; 0 if it has no value yet."""
        lines = self.page("/metrics").text.splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if re.match(rf"{name}(\{{| )", line))

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.process.wait(STOP_S)

    def freeze(self) -> None:
        """Keep it from running, as a node does that is short of memory."""
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it continue."""
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """SIGTERM; its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STOP_S)

    def _address(self) -> str | None:
        assert self.process.poll() is None, f"the operator ended: {self.printed_text()}"
        found = re.findall(r"address=(\S+) .*event=ready", self.printed_text())
        return found[-1] if found else None


@contextmanager
def operator_process(
    kubeconfig: Path, log: Path, *flags: str, environment: dict[str, str] | None = None
) -> Iterator[OperatorProcess]:
    """An operator that serves; killed at the end if it still runs."""
    operator = OperatorProcess(kubeconfig, log, *flags, environment=environment)
    try:
        yield operator.ready()
    finally:
        operator.kill()
