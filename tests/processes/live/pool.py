"""A pool of real processes on loopback.

    with pool.client() as client: ...
    pool.kill("sidecar", "r0")
    pool.start("sidecar", "r0")
    pool.start_router("strict", routing={"backup": "reject"})  # another one, on the same replicas

Ports are whatever was free at the first start; a process that is started again takes its old port back, as it
would behind a service's address.
"""

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import httpx2
import openai
from live.pool_file import MODEL, write_pool
from live.process import Process, Started
from patience import until

Kind = Literal["engine", "sidecar", "router"]
REPLICA: tuple[Kind, Kind] = ("engine", "sidecar")
ROUTER: tuple[Kind, str] = ("router", "main")


class LivePool:
    """Engines and sidecars `r0`, `r1`, …; routers `main` and any that a test adds.

    each: additional flags of each replica, in order; none for replicas past its end.
    start: how a process is started.
    through: from what a process is ("sidecar r0") and where it listens, where others reach it: by a proxy.
    """

    model = MODEL

    def __init__(
        self,
        folder: Path,
        replicas: int = 1,
        each: Sequence[dict[str, Any]] = (),
        start: Callable[[str, list[str], Path], Started] = Process,
        through: Callable[[str, str], str] = lambda what, address: address,
        **changes: Any,
    ) -> None:
        self.folder, self._start, self._through = folder, start, through
        self._changes: dict[str, Any] = {"replicas": replicas, **changes}
        self._files = {"main": write_pool(folder / "pool.yaml", **self._changes)}
        self.replicas = [f"r{number}" for number in range(replicas)]
        for name, own in zip(self.replicas, each, strict=False):
            self._files[name] = write_pool(folder / f"pool-{name}.yaml", **{**self._changes, **own})
        self._running: dict[tuple[Kind, str], Started] = {}
        self._addresses: dict[tuple[Kind, str], str] = {}

    def open(self) -> None:
        """Start everything and wait until it serves."""
        for kind in REPLICA:
            started = [self._spawn(kind, name) for name in self.replicas]
            for name, process in zip(self.replicas, started, strict=True):
                self._wait_ready(kind, name, process)
        self.start("router", "main")
        until(lambda: self.ready_replicas() == set(self.replicas), "every replica in service")

    def close(self) -> None:
        """End everything."""
        for process in self._running.values():
            process.kill()

    def restore(self) -> None:
        """Restore the pool after a test: restart killed or stopped processes, end added routers."""
        for kind, name in [key for key in self._running if key[0] == "router" and key[1] != "main"]:
            self.kill(kind, name)
        for kind, name in [*((k, r) for k in REPLICA for r in self.replicas), ROUTER]:
            process = self._running.get((kind, name))
            if process is None or not process.alive or process.command != self.command(kind, name):
                self.start(kind, name)
        until(lambda: self.ready_replicas() == set(self.replicas), "every replica in service")
        until(lambda: self.running() == 0, "engines idle")

    def start(self, kind: Kind, name: str, *flags: str) -> Started:
        """Start one process, at its old address where it had one, and wait until it serves."""
        process = self._spawn(kind, name, *flags)
        self._wait_ready(kind, name, process, *flags)
        return process

    def _wait_ready(self, kind: Kind, name: str, process: Started, *flags: str) -> None:
        """Wait until it serves. From now on its command is the one with the port that it got."""
        self._addresses[kind, name] = process.wait_ready()
        process.command = [*self.command(kind, name), *flags]

    def start_router(self, name: str, **changes: Any) -> None:
        """Start one more router on the same replicas, whose pool file has `changes`."""
        self._files[name] = write_pool(self.folder / f"pool-{name}.yaml", **{**self._changes, **changes})
        self.start("router", name)
        until(lambda: self.ready_replicas(name) == set(self.replicas), f"every replica known to {name}")

    def kill(self, kind: Kind, name: str) -> None:
        """kill -9."""
        self._running.pop((kind, name)).kill()

    @contextmanager
    def frozen(self, kind: Kind, name: str) -> Iterator[None]:
        """SIGSTOP: it does nothing, while the kernel keeps its connections; SIGCONT at the end."""
        process = self._running[kind, name]
        process.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    def ask_to_stop(self, kind: Kind, name: str) -> Started:
        """SIGTERM; the process, to wait for its exit code."""
        process = self.process(kind, name)
        process.ask_to_stop()
        return process

    def process(self, kind: Kind, name: str) -> Started:
        """Return a running process."""
        return self._running[kind, name]

    def url(self, router: str = "main") -> str:
        return f"http://{self._addresses['router', router]}"

    def admin_url(self, router: str = "main") -> str:
        return f"http://{self._running['router', router].admin}"

    def address(self, kind: Kind, name: str) -> tuple[str, int]:
        host, _, port = self._addresses[kind, name].partition(":")
        return host, int(port)

    def client(self, router: str = "main", **options: Any) -> openai.OpenAI:
        """The official client. It does not retry, so that tests see what the pool answers."""
        return openai.OpenAI(**self._client_options(router, options))

    def async_client(self, router: str = "main", **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._client_options(router, options))

    def ready_replicas(self, router: str = "main") -> set[str]:
        """Replicas that take work, as this router's metrics say."""
        samples = _samples(f"{self.admin_url(router)}/metrics", "penstock_router_replica_ready")
        return {labels.split('replica="')[1].split('"')[0] for labels, value in samples if value == 1}

    def engine_value(self, replica: str, metric: str) -> float:
        """A sample of an engine's own metrics, by vLLM's name."""
        host, port = self.address("engine", replica)
        return sum(value for _, value in _samples(f"http://{host}:{port}/metrics", metric))

    def engines_value(self, metric: str) -> float:
        """The same, summed over the replicas."""
        return sum(self.engine_value(replica, metric) for replica in self.replicas)

    def router_value(self, metric: str, router: str = "main") -> float:
        """A router's own metric, summed over its labels."""
        return sum(value for _, value in _samples(f"{self.admin_url(router)}/metrics", metric))

    def running(self) -> int:
        """Requests that engines are working on, over all replicas."""
        counts = ("vllm:num_requests_running", "vllm:num_requests_waiting")
        return round(sum(map(self.engines_value, counts)))

    def logs(self) -> list[tuple[str, str]]:
        """(process, what it printed), for a failing test's report."""
        return [(path.stem, path.read_text(errors="replace")) for path in sorted(self.folder.glob("*.log"))]

    def _spawn(self, kind: Kind, name: str, *flags: str) -> Started:
        previous = self._running.pop((kind, name), None)
        if previous is not None:
            previous.kill()
        log = self.folder / f"{kind}-{name}-{len(list(self.folder.glob(f'{kind}-{name}-*.log')))}.log"
        process = self._start(f"{kind} {name}", [*self.command(kind, name), *flags], log)
        self._running[kind, name] = process
        return process

    def command(self, kind: Kind, name: str) -> list[str]:
        """How this process is started."""
        address = self._addresses.get((kind, name), "127.0.0.1:0")
        port = address.rpartition(":")[2]
        telemetry = str(self.folder / f"{name}.sock")
        file = str(self._files.get(name, self._files["main"]))
        match kind:
            case "engine":
                serving = ["--host", "127.0.0.1", "--port", port, "--telemetry", telemetry]
                return ["penstock-engine", "-f", file, *serving]
            case "sidecar":
                engine = f"http://{self._reached('engine', name)}"
                beside = ["--listen", address, "--engine", engine, "--telemetry", telemetry]
                return ["penstock-sidecar", "-f", file, "--name", name, *beside]
            case "router":
                replicas = [f"--replica={r}={self._reached('sidecar', r)}" for r in self.replicas]
                serving = ["--host", "127.0.0.1", "--port", port, "--admin-port", "0"]
                return ["penstock-router", "-f", file, *serving, *replicas]

    def _reached(self, kind: Kind, name: str) -> str:
        """Where another process of the pool reaches this one."""
        return self._through(f"{kind} {name}", self._addresses[kind, name])

    def _client_options(self, router: str, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "base_url": f"{self.url(router)}/v1",
            "api_key": "none",
            "max_retries": 0,
            "timeout": 60,
            **options,
        }


def _samples(url: str, metric: str) -> list[tuple[str, float]]:
    """(labels as text, value) of every sample of one metric."""
    found = []
    for line in httpx2.get(url, timeout=10).text.splitlines():
        name, _, rest = line.partition("{") if "{" in line else line.partition(" ")
        if name == metric:
            labels, _, value = rest.rpartition(" ")
            found.append((labels, float(value)))
    return found
