"""The ways of serving: unmodified vLLM at a token budget, or Penstock with its scheduler inside vLLM.

Both run the same model with the same arguments on the same device, from one pool file; only the scheduler and
the processes in front of the engine differ. A server is started at the first use of its URL, because a
resumed bench may have all results already.
"""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from penstock_cli.local.vllm_engine import LOAD_TIMEOUT_S, SCHEDULER, VllmEngine, argv
from penstock_core.domain.slo import Slo, Tier
from penstock_pool import load_pool
from penstock_profiler.profiling import INACCURATE
from penstock_runtime.serving import listen
from unmodified.servers import running

PENSTOCK = Path(sys.executable).parent / "penstock"
MEASURED = "measured.json"


class ServingWay(NamedTuple):
    """One way of serving. policy: Penstock's; None for vLLM's scheduler. batch_tokens: token budget."""

    batch_tokens: int
    policy: str | None = None

    @property
    def name(self) -> str:
        """Name in the page and the journal."""
        return f"Penstock, {self.policy}" if self.policy else f"vLLM, {self.batch_tokens} tokens a step"


class Target(NamedTuple):
    """The model and engine that all ways serve.

    vllm: its Python, and the model. served: the model's name. environment: additional variables.
    """

    vllm: VllmEngine
    served: str
    arguments: Sequence[str]
    environment: Mapping[str, str]
    tensor_parallel: int
    context_tokens: int
    max_running: int


def pool_document(
    target: Target, way: ServingWay, tiers: Mapping[str, Tier], time_model: str
) -> dict[str, Any]:
    """Return the document of the pool file; JSON is YAML."""
    engine = {
        "type": "vllm",
        "timeModel": time_model,
        "maxModelLen": target.context_tokens,
        "tensorParallelSize": target.tensor_parallel,
        "args": list(target.arguments),
    }
    scheduling = {
        "policy": way.policy or "vllm",
        "maxRunning": target.max_running,
        "maxBatchTokens": way.batch_tokens,
    }
    return {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "bench"},
        "spec": {
            "model": {"name": target.served},
            "engine": engine,
            "replicas": 1,
            "tiers": [{"name": name, "slo": slo_document(tier.slo)} for name, tier in tiers.items()],
            "scheduling": scheduling,
        },
    }


def slo_document(slo: Slo) -> dict[str, Any]:
    """Return targets as in a pool file."""
    ttft = {"slowdown": slo.ttft_slowdown} if slo.ttft_slowdown else milliseconds(slo.ttft_s)
    reported = {"ttft": ttft, "tpot": milliseconds(slo.tpot_s), "answerTpot": milliseconds(slo.answer_tpot_s)}
    return {name: value for name, value in reported.items() if value is not None} | {"judge": slo.judge.value}


def milliseconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{1e3 * seconds:g}ms"


class WayServer:
    """A server of one way, started at the first use of its URL and stopped after the block."""

    def __init__(self, target: Target, way: ServingWay, folder: Path) -> None:
        self._target, self._way, self._folder = target, way, folder
        self._stack, self._url = ExitStack(), ""

    def __enter__(self) -> "WayServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def url(self) -> str:
        """Return the server's base URL. Exits with the server's log if it does not start."""
        if not self._url:
            print(f"  starting {self._way.name}", flush=True)
            serving = _penstock if self._way.policy else _plain
            self._url = self._stack.enter_context(serving(self._target, self._folder))
        return self._url


@contextmanager
def _plain(target: Target, folder: Path) -> Iterator[str]:
    port = _free_port()
    pool = load_pool(folder / "pool.yaml")
    command = list(argv(target.vllm, pool, "127.0.0.1", str(port)))
    at = command.index(SCHEDULER)
    del command[at - 1 : at + 1]
    with _started([*command, "--disable-uvicorn-access-log"], target, folder, port, "/health") as url:
        yield url


@contextmanager
def _penstock(target: Target, folder: Path) -> Iterator[str]:
    port = _free_port()
    command = [str(PENSTOCK), "up", "-f", str(folder / "pool.yaml"), "--engine", "vllm"]
    command += ["--vllm-python", str(target.vllm.python), "--port", str(port)]
    if Path(target.vllm.model).is_dir():
        command += ["--model", target.vllm.model]
    with _started(command, target, folder, port, "/ready") as url:
        yield url


@contextmanager
def _started(command: Sequence[str], target: Target, folder: Path, port: int, well: str) -> Iterator[str]:
    log, url = folder / "server.log", f"http://127.0.0.1:{port}"
    with running(command, target.environment, log) as process:
        until_s = time.monotonic() + LOAD_TIMEOUT_S
        while not _answers(f"{url}{well}"):
            if process.poll() is not None or time.monotonic() > until_s:
                sys.exit(f"{command[0]} serves nothing; {log} ends with:\n{log.read_text()[-2000:]}")
            time.sleep(0.5)
        yield url


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False


def profile(url: str, out: Path, seconds: float, way: ServingWay, max_running: int) -> None:
    """Measure an idle engine, as `penstock profile` does. Exits with its page if the model is inaccurate.

    Raises CalledProcessError.
    """
    command = [PENSTOCK, "profile", "--engine", url, "--out", out, "--seconds", f"{seconds:g}"]
    command += ["--longest-prompt", str(way.batch_tokens), "--most-requests", str(min(max_running, 64))]
    with out.with_suffix(".log").open("w+") as log:
        subprocess.run(list(map(str, command)), check=True, stdout=log, stderr=subprocess.DEVNULL)
        log.seek(0)
        page = log.read()
    if json.loads(out.read_text())["held_out"]["mean_error"] >= INACCURATE:
        out.unlink()
        sys.exit(page)


def write_pool(folder: Path, document: Mapping[str, Any]) -> None:
    (folder / "pool.yaml").write_text(json.dumps(document, indent=2) + "\n")


def _free_port() -> int:
    with listen("127.0.0.1", 0) as free:
        return int(free.getsockname()[1])
