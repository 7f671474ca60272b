"""Processes of the test: vLLM's own servers, `penstock up`, and further routers of its replicas.

All listen on loopback. The output of each process goes to a file in the results' folder.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock_cli.local.ports import free_ports
from pool_on_cluster.waiting import until
from unmodified.servers import python, running, until_answers, vllm_environment

from pool_on_vllm.metrics_page import fetch

PENSTOCK = Path(sys.executable).with_name("penstock")
START_S = 600.0
"""Timeout of the start of one vLLM. On an idle machine it takes half a minute."""
STOP_S = 60.0

MODEL = "tiny"
PLAIN: Sequence[str] = (
    "--enforce-eager",
    "--disable-uvicorn-access-log",
    *("--distributed-executor-backend", "uni"),
    *("--dtype", "float32"),
)
"""Flags of every vLLM server. float32: see `greedy.py`."""
COMMON: Sequence[str] = ("--no-enable-prefix-caching", *PLAIN)
"""Flags of engines without a prefix cache, so that a repeated prompt takes the same work."""
LARGE_MEMORY = ("--num-gpu-blocks-override", "512")
"""KV blocks of 128 tokens: more than any load of the test needs."""
CONTEXT, SLOTS, BATCH_TOKENS = 4096, 16, 2048


def environment() -> Mapping[str, str]:
    """Return environment variables of vLLM for a small machine without a network."""
    return {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **vllm_environment(Path())}


@contextmanager
def plain_vllm(model: Path, budgets: Sequence[int | None], log: Path) -> Iterator[dict[int | None, str]]:
    """Run vLLM's own servers, without the plug-in. Yields their URLs by token budget; None: the default."""
    ports = dict(zip(budgets, free_ports(len(budgets), "127.0.0.1"), strict=True))
    flags = {budget: "" if budget is None else f"--max-num-batched-tokens {budget}" for budget in budgets}
    common = [
        "--model",
        str(model),
        "--served-model-name",
        MODEL,
        "--host",
        "127.0.0.1",
        *COMMON,
        *LARGE_MEMORY,
    ]
    common += ["--max-model-len", str(CONTEXT), "--max-num-seqs", str(SLOTS)]
    program = Path(__file__).with_name("plain_vllm.py")
    servers = [f"{port}={flags[budget]}" for budget, port in ports.items()]
    with running([python(), program, *servers, "--", *common], environment(), log):
        for port in ports.values():
            until_answers(f"http://127.0.0.1:{port}/health", log)
        yield {budget: f"http://127.0.0.1:{port}" for budget, port in ports.items()}


class LocalReplica(NamedTuple):
    """A replica of a local pool: its name and the addresses that its sidecar has logged."""

    name: str
    address: str
    engine: str
    metrics: str


class Router(NamedTuple):
    """URLs of a router's API and of its admin port."""

    url: str
    admin_url: str


class LocalPool:
    """A pool run by `penstock up --engine vllm`. gateway: `router` or `envoy`."""

    def __init__(self, pool: Path, model: Path, replicas: int, log: Path, gateway: str = "router") -> None:
        port, admin_port = free_ports(2, "127.0.0.1")
        self.router = Router(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
        self.replicas, self._gateway = replicas, gateway
        self.log = log
        command = [PENSTOCK, "up", "-f", pool, "--engine", "vllm", "--model", model, "--replicas", replicas]
        command += ["--vllm-python", python(), "--port", port]
        command += ["--admin-port", admin_port, "--gateway", gateway]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [*map(str, command)],
                env={**os.environ, **environment()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def wait_ready(self) -> list[LocalReplica]:
        """Wait until all replicas are ready, and return them."""
        until(lambda: self._ended() or len(self.serving()) == self.replicas, "the pool is ready", START_S)
        assert not self._ended(), f"penstock up ended:\n{self.output()[-3000:]}"
        found = re.findall(
            r"name=(\S+) address=(\S+) engine=(\S+) metrics=(\S+)(?: \S+)* event=ready", self.output()
        )
        return sorted(
            {LocalReplica(name, at, engine, f"http://{reported}") for name, at, engine, reported in found}
        )

    def serving(self) -> list[str]:
        """Return the replicas that the router or the picker reports as ready."""
        if self._gateway == "envoy":
            page = fetch(f"{self.router.admin_url}/ready")
            return [] if page is None else list(json.loads(page)["endpoints"])
        page = fetch(f"{self.router.url}/ready")
        states = {} if page is None else json.loads(page)["replicas"]
        return [name for name, state in states.items() if state == "ready"]

    def output(self) -> str:
        """Return the output of the pool's processes."""
        return self.log.read_text(errors="replace")

    def engine(self, replica: LocalReplica) -> int:
        """Return the process id of a replica's engine."""
        return self._child("penstock-engine", replica.engine.rpartition(":")[2])

    def sidecar(self, replica: LocalReplica) -> int:
        """Return the process id of a replica's sidecar."""
        return self._child("penstock-sidecar", replica.name)

    def _child(self, *words: str) -> int:
        """Return the child process whose command line has these words. Programs count by their file name."""
        for process in children(self._process.pid):
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode().split("\0")
            if set(words) <= {Path(word).name for word in command}:
                return process
        raise AssertionError(f"{' '.join(words)} does not run")

    def stop(self) -> tuple[int, list[int]]:
        """Send SIGINT, then SIGKILL after a timeout. Returns the exit code and the remaining processes."""
        processes = descendants(self._process.pid)
        self._process.send_signal(signal.SIGINT)
        try:
            code = self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            code = self._process.wait()
        return code, [process for process in processes if Path(f"/proc/{process}/exe").exists()]

    def kill(self) -> None:
        """Stop the pool if it still runs."""
        if not self._ended():
            self.stop()

    def _ended(self) -> bool:
        return self._process.poll() is not None


def descendants(parent: int) -> list[int]:
    """Return all descendants of a process."""
    return [process for child in children(parent) for process in (child, *descendants(child))]


def children(parent: int) -> list[int]:
    """Return the child processes of a process."""
    listed = [
        Path(f"/proc/{parent}/task/{task.name}/children").read_text().split()
        for task in Path(f"/proc/{parent}/task").iterdir()
    ]
    return [int(process) for of_task in listed for process in of_task]


@contextmanager
def router_of(
    replicas: Sequence[LocalReplica], pool: Path, log: Path, level: str = "info"
) -> Iterator[Router]:
    """Run another router of these replicas, with its own pool file."""
    port, admin_port = free_ports(2, "127.0.0.1")
    command: list[str | Path] = [PENSTOCK.with_name("penstock-router"), "-f", pool, "--port", str(port)]
    command += ["--admin-port", str(admin_port)]
    for replica in replicas:
        command += ["--replica", f"{replica.name}={replica.address}"]
    router = Router(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{admin_port}")
    with running([*command, "--log-level", level, "--log-json"], {}, log):
        until(lambda: _ready_replicas(router.url) == len(replicas), "the router reports all replicas ready")
        yield router


def _ready_replicas(url: str) -> int:
    page = fetch(f"{url}/ready")
    states: dict[str, Any] = {} if page is None else json.loads(page)["replicas"]
    return list(states.values()).count("ready")


def bench_serve(arguments: Sequence[str], log: Path) -> None:
    """Run `vllm bench serve`. Raises AssertionError if it fails.

    The `vllm` command requires a distribution named vllm, and the CPU build has another name. So this calls
    the benchmark's parser and main function as that command does.
    """
    code = (
        "from vllm.benchmarks.serve import add_cli_args, main\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "parser = FlexibleArgumentParser('vllm bench serve')\n"
        "add_cli_args(parser)\n"
        "main(parser.parse_args())\n"
    )
    with log.open("wb") as output:
        done = subprocess.run(
            [str(python()), "-c", code, *arguments],
            env={**os.environ, **environment()},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=START_S,
            check=False,
        )
    assert done.returncode == 0, f"vllm bench serve: {log.read_text()[-2000:]}"


def profile(url: str, out: Path, seconds: float) -> str:
    """Run `penstock profile` on an engine. Returns its output."""
    command = [PENSTOCK, "profile", "--engine", url, "--out", out, "--seconds", seconds]
    command += ["--longest-prompt", BATCH_TOKENS, "--most-requests", SLOTS]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"penstock profile: {done.stdout}{done.stderr}"
    return done.stdout
