"""The three ways from a client to the engine, as running processes.

Each way has an engine of its own, the same program with the same settings, because the one behind a sidecar
reports to it and would report the others' requests too. What is measured runs on one core, engines and the
client on another, where the machine has two.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from overhead.load import BadAnswer
from overhead.peer import vllm_router

BIN = Path(sys.executable).parent
MEASURED_CORE, OTHER_CORE = 0, min(1, (os.cpu_count() or 1) - 1)
START_S = 60.0

POOL = """\
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: bench}
spec:
  model: {name: bench}
  engine: {type: vllm, timeModel: llama-3-8b-a100, kvCacheTokens: 16000000}
  replicas: 1
  tiers:
  - {name: chat, slo: {ttft: 60s, tpot: 1s}}
  - {name: batch, bestEffort: true}
  defaultTier: chat
  scheduling: {policy: slos-serve, maxRunning: 4096, maxWaiting: 4096}
"""
"""Loose targets: every request is planned for, as in a real pool, and none is turned away."""


@dataclass(frozen=True, slots=True)
class Way:
    """One way to the engine: where the client sends, and the processes in between by name."""

    name: str
    url: str
    pids: dict[str, int]


class Started:
    """A child process with its log in a file."""

    def __init__(self, command: list[str | Path], core: int, log: Path) -> None:
        self.log = log
        with log.open("wb") as out:
            self.process = subprocess.Popen(["taskset", "-c", str(core), *command], stdout=out, stderr=out)

    def wait_for(self, pattern: str) -> str:
        """The first group of `pattern` once the log has it."""
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
        """End it, kindly and then not."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Machine:
    """Starts processes and stops them all, last first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.stack = contextlib.ExitStack()

    def start(self, name: str, command: list[str | Path], core: int) -> Started:
        started = Started(command, core, self.folder / f"{name}.log")
        self.stack.callback(started.stop)
        return started

    def engine(self, name: str, step_ms: float, telemetry: Path | None) -> str:
        """A fast engine's address."""
        program = Path(__file__).with_name("fast_engine.py")
        reports: list[str | Path] = [] if telemetry is None else ["--telemetry", telemetry]
        command: list[str | Path] = [sys.executable, program, "--step-ms", str(step_ms), *reports]
        return "127.0.0.1:" + self.start(name, command, OTHER_CORE).wait_for(r"ready (\d+)")


@contextlib.contextmanager
def ways(folder: Path, step_ms: float, *, peer: bool) -> Iterator[dict[str, Way]]:
    """All ways, up and answering; stopped on leaving."""
    machine = Machine(folder)
    with machine.stack:
        running = {"direct": _direct(machine, step_ms), "penstock": penstock(machine, step_ms)}
        if peer:
            running["vllm-router"] = _peer(machine, step_ms)
        try:
            yield running
        except BadAnswer as error:
            output = [
                f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in folder.glob("*.log")
            ]
            raise SystemExit("\n".join([*output, f"a request failed: {error}"])) from None


def _direct(machine: Machine, step_ms: float) -> Way:
    return Way("direct", f"http://{machine.engine('engine-direct', step_ms, None)}", {})


def penstock(
    machine: Machine, step_ms: float, name: str = "penstock", programs: Path = BIN, pool_text: str = POOL
) -> Way:
    """Start router, sidecar and engine. programs: where the first two are, of this checkout or another."""
    pool, telemetry = machine.folder / f"pool-{name}.yaml", machine.folder / f"{name}.sock"
    pool.write_text(pool_text)
    engine = machine.engine(f"engine-{name}", step_ms, telemetry)
    serving = r"(?m)^(?=.*\bevent=ready\b).*\baddress=(127\.0\.0\.1:\d+)"
    sidecar = machine.start(
        f"sidecar-{name}",
        [
            *(programs / "penstock-sidecar", "-f", pool, "--name", "r0", "--listen", "127.0.0.1:0"),
            *("--engine", f"http://{engine}", "--telemetry", telemetry),
        ],
        MEASURED_CORE,
    )
    replica = f"r0={sidecar.wait_for(serving)}"
    router = machine.start(
        f"router-{name}",
        [
            *(programs / "penstock-router", "-f", pool, "--host", "127.0.0.1", "--port", "0"),
            *("--replica", replica, *_admin_port(programs)),
        ],
        MEASURED_CORE,
    )
    url = f"http://{router.wait_for(serving)}"
    _wait_until_ready(f"{url}/ready")
    return Way(name, url, {"router": router.process.pid, "sidecar": sidecar.process.pid})


def _admin_port(programs: Path) -> tuple[str, ...]:
    """A free port, where the router has one of its own for operators: early versions have not."""
    flags = subprocess.run(
        [programs / "penstock-router", "--help"], capture_output=True, text=True, check=True
    )
    return ("--admin-port", "0") if "--admin-port" in flags.stdout else ()


def _peer(machine: Machine, step_ms: float) -> Way:
    engine = machine.engine("engine-peer", step_ms, None)
    port = _free_port()
    router = machine.start(
        "vllm-router",
        [
            *(vllm_router(), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"),
            *("--worker-urls", f"http://{engine}", "--prometheus-port", str(_free_port())),
            *("--log-level", "warning", "--max-concurrent-requests", "8192"),
        ],
        MEASURED_CORE,
    )
    url = f"http://127.0.0.1:{port}"
    _wait_until_ready(f"{url}/readiness")
    return Way("vllm-router", url, {"vllm-router": router.process.pid})


def _wait_until_ready(url: str) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError as error:
            if time.monotonic() > deadline_s:
                raise SystemExit(f"{url} is not ready after {START_S:g} s: {error}") from None
            time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port
