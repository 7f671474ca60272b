"""vLLM as an engine of a pool on this machine: which Python has it, and how it is started with the plug-in.

vLLM lives in an environment of its own, with its own torch; ours need not have it. So it is found by the
interpreter that can import it, and both it and the plug-in are looked for before anything is started.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock_pool import Pool
from penstock_runtime.engine_key import engine_key

from penstock_cli.failure import Failure

PYTHON_VARIABLE = "PENSTOCK_VLLM_PYTHON"
SCHEDULER = "penstock_vllm.scheduler.PenstockScheduler"

MARK = "penstock-engine"
"""In every engine's command line, by which its process is told from others."""

LOAD_TIMEOUT_S = 1800.0
"""Longest that weights may take to be fetched, loaded and compiled."""

LOOK = """
import importlib.util as found, json
print(json.dumps([name for name in ("vllm", "penstock_vllm") if found.find_spec(name) is None]))
"""


@dataclass(frozen=True, slots=True)
class Vllm:
    """What is started. python: that has vLLM and the plug-in. model: a folder, or a hub id."""

    python: Path
    model: str


def vllm_wanted(pool: Pool, python: Path | None, model: Path | None) -> Vllm:
    """vLLM for this pool. Raises Failure where it, the plug-in or the model is not there."""
    if model is not None and not (model / "config.json").is_file():
        raise Failure(f"--model {model}: no model is there; a folder with config.json is", bad_input=True)
    found = _found(python)
    source = pool.spec.model.source
    named = pool.spec.model.name if source is None or source.hub is None else source.hub
    return Vllm(found, named if model is None else str(model.absolute()))


def argv(vllm: Vllm, pool: Pool, host: str, port: str) -> tuple[str, ...]:
    """The command line of one engine."""
    engine, scheduling = pool.spec.engine, pool.spec.scheduling
    flags = {
        "--model": vllm.model,
        "--served-model-name": pool.spec.model.name,
        "--host": host,
        "--port": port,
        "--max-model-len": engine.max_model_len,
        "--max-num-batched-tokens": scheduling.max_batch_tokens,
        "--max-num-seqs": scheduling.max_running,
        "--tensor-parallel-size": engine.tensor_parallel_size,
        "--scheduler-cls": SCHEDULER,
    }
    words = [word for flag, value in flags.items() for word in (flag, str(value))]
    server = ("-m", "vllm.entrypoints.openai.api_server")
    return (str(vllm.python), "-X", MARK, *server, *words, *engine.args)


def environment(pool: Pool, telemetry: str) -> Mapping[str, str]:
    """What vLLM and the plug-in are told."""
    engine, scheduling = pool.spec.engine, pool.spec.scheduling
    told = {
        "PENSTOCK_POLICY": scheduling.policy,
        "PENSTOCK_TIME_MODEL": engine.time_model,
        "PENSTOCK_TELEMETRY": telemetry,
        "PENSTOCK_AGING_S": f"{scheduling.aging_timeout_s:g}",
    }
    if engine.speculation is not None:
        told["PENSTOCK_ACCEPTANCE"] = f"{engine.speculation.acceptance:g}"
    if key := engine_key(os.environ):
        told["VLLM_API_KEY"] = key
    return told


def _found(given: Path | None) -> Path:
    python = given or _usual()
    if python is None:
        raise Failure(
            "--engine vllm: there is no vLLM beside this command or on PATH; name the Python that has it "
            f"with --vllm-python or {PYTHON_VARIABLE}",
            bad_input=True,
        )
    try:
        told = subprocess.run([python, "-c", LOOK], capture_output=True, text=True, timeout=60, check=True)
        missing = json.loads(told.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        raise Failure(f"--vllm-python {python}: is no Python that runs", bad_input=True) from None
    if "vllm" in missing:
        raise Failure(f"--vllm-python {python}: has no vLLM; pip install vllm there", bad_input=True)
    if missing:
        raise Failure(
            f"--vllm-python {python}: its vLLM has no scheduler of Penstock's; pip install "
            "penstock-vllm-plugin there",
            bad_input=True,
        )
    return python


def _usual() -> Path | None:
    """The variable's, this one where it has vLLM, else the one that runs the `vllm` on PATH."""
    if named := os.environ.get(PYTHON_VARIABLE):
        return Path(named)
    if find_spec("vllm") is not None:
        return Path(sys.executable)
    command = shutil.which("vllm")
    return None if command is None else Path(command).resolve().parent / "python"
