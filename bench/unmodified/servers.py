"""Real, unmodified engines on this machine's CPU, each serving a small model while a block runs.

Both run in the environment of `bench/vllm_environment serving`. `transformers serve` also requires
`accelerate`, which is installed in a folder beside it.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from penstock_simulator.real_vllm.location import folder

PROJECT = Path(__file__).parents[2]
ACCELERATE = "accelerate==1.15.0"

START_S = 420.0
"""Timeout of a start. Importing vLLM takes 15 s on an idle machine, and minutes on a busy one."""


class UnmodifiedEngine(NamedTuple):
    """An engine. version: package whose version is reported. pool: its part of the pool file."""

    title: str
    version: str
    model: str
    command: Callable[[Path, int], Sequence[str]]
    environment: Callable[[Path], Mapping[str, str]]
    pool: str
    max_running: int
    max_batch_tokens: int


def python() -> Path:
    """Return the Python of the engines' environment. Exits with a message if there is none."""
    found = Path(f"{folder()}-serving") / "bin" / "python"
    if not found.exists():
        sys.exit(f"there is no {found}: run 'bench/vllm_environment serving' once")
    return found


def vllm(model: Path, port: int) -> Sequence[str]:
    flags = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    flags += [
        "--enforce-eager",
        "--max-model-len",
        "4096",
        "--max-num-seqs",
        "16",
        "--max-num-batched-tokens",
    ]
    flags += ["1024", "--no-enable-prefix-caching", "--num-gpu-blocks-override", "512"]
    flags += ["--distributed-executor-backend", "uni", "--disable-uvicorn-access-log"]
    return ["-m", "vllm.entrypoints.openai.api_server", *flags]


def vllm_environment(_: Path) -> Mapping[str, str]:
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }


def transformers(_: Path, port: int) -> Sequence[str]:
    flags = ["--continuous-batching", "--device", "cpu", "--host", "127.0.0.1", "--port", str(port)]
    flags += ["--cb-block-size", "32", "--cb-num-blocks", "1024", "--cb-max-batch-tokens", "1024"]
    start = "from transformers.cli.transformers import main; main()"
    return ["-c", start, "serve", "penstock/tiny", *flags]


def transformers_environment(model: Path) -> Mapping[str, str]:
    """Return variables for a hub cache that contains the model, because it serves only cached models."""
    home = model.parent / "hub-cache"
    there = home / "hub" / "models--penstock--tiny"
    if not there.exists():
        shutil.copytree(model, there / "snapshots" / "0")
        (there / "refs").mkdir()
        (there / "refs" / "main").write_text("0")
    return {"HF_HOME": str(home), "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": str(accelerate())}


def accelerate() -> Path:
    """Return its folder; install it the first time."""
    there = Path(f"{folder()}-{ACCELERATE}")
    if not there.exists():
        fetch = ["uv", "pip", "install", "--quiet", "--no-deps", "--python", str(python())]
        subprocess.run([*fetch, "--target", str(there), ACCELERATE], check=True)
    return there


ENGINES = {
    "vllm": UnmodifiedEngine("vLLM", "vllm", "tiny", vllm, vllm_environment, "", 16, 1024),
    "transformers": UnmodifiedEngine(
        "transformers serve, continuous batching",
        "transformers",
        "penstock/tiny",
        transformers,
        transformers_environment,
        ", kvCacheTokens: 32768",
        64,
        1024,
    ),
}


def version(engine: UnmodifiedEngine) -> str:
    code = f"from importlib.metadata import version; print(version('{engine.version}'))"
    if engine.version == "vllm":
        code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    return subprocess.check_output([python(), "-c", code], text=True).strip()


def make_model(into: Path) -> Path:
    model = into / "tiny"
    maker = Path(__file__).with_name("make_model.py")
    quiet = {**os.environ, "TQDM_DISABLE": "1"}
    subprocess.run([python(), maker, model], check=True, stdout=subprocess.DEVNULL, env=quiet)
    return model


@contextmanager
def running(
    command: Sequence[str | Path], environment: Mapping[str, str], log: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a process; end it and its children after the block."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*map(str, command)],
            env={**os.environ, **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        yield process
    finally:
        for sign, patience_s in ((signal.SIGINT, 20.0), (signal.SIGKILL, 20.0)):
            try:
                os.killpg(process.pid, sign)
                process.wait(patience_s)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


@contextmanager
def serving(engine: UnmodifiedEngine, model: Path, port: int) -> Iterator[str]:
    """Run an engine, and yield its URL when it answers."""
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **engine.environment(model)}
    log = model.parent / f"{engine.version}.log"
    with running([python(), *engine.command(model, port)], environment, log):
        url = f"http://127.0.0.1:{port}"
        until_answers(f"{url}/health", log)
        yield url


def until_answers(url: str, log: Path) -> None:
    until_s = time.monotonic() + START_S
    while time.monotonic() < until_s:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
    sys.exit(f"{url} does not answer; its log ends with:\n{log.read_text()[-2000:]}")
