"""vLLM as an engine of a pool on this machine: finds the Python that has it, and builds the command line.

vLLM usually has its own Python environment. The environment is identified by its interpreter, in which vLLM
and the plug-in must be importable; this is checked before any process starts.
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
from penstock_pool.engine_spec import cache_arguments
from penstock_runtime.engine_key import engine_key

from penstock_cli.failure import Failure

PYTHON_VARIABLE = "PENSTOCK_VLLM_PYTHON"
SCHEDULER = "penstock_vllm.scheduler.PenstockScheduler"
MIDDLEWARE = "penstock_vllm.gateway_middleware.SidecarAdmission"

KEEP_ALIVE_S = 75
"""Time after which vLLM closes an idle connection; a gateway closes it before."""

PROCESS_MARK = "penstock-engine"
"""Option in every engine's command line that identifies its process."""

LOAD_TIMEOUT_S = 1800.0
"""Timeout for downloading, loading and compiling a model."""

FIND_TIMEOUT_S = 60.0
"""Timeout of the check of an interpreter's modules."""

FIND_MODULES = """
import importlib.util as found, json
print(json.dumps([name for name in ("vllm", "penstock_vllm") if found.find_spec(name) is None]))
"""


@dataclass(frozen=True, slots=True)
class VllmEngine:
    """How to start vLLM. python: interpreter with vLLM and the plug-in. model: a folder, or a hub id."""

    python: Path
    model: str


def vllm_engine(pool: Pool, python: Path | None, model: Path | None) -> VllmEngine:
    """Return how to start vLLM for a pool. Raises Failure if vLLM, the plug-in or the model is missing."""
    if model is not None and not (model / "config.json").is_file():
        raise Failure(f"--model {model}: not a model; a model's folder has config.json", bad_input=True)
    found = _find_python(python)
    source = pool.spec.model.source
    named = pool.spec.model.name if source is None or source.hub is None else source.hub
    return VllmEngine(found, named if model is None else str(model.absolute()))


def argv(
    vllm: VllmEngine, pool: Pool, host: str, port: str, *, behind_gateway: bool = False
) -> tuple[str, ...]:
    """Return the command line of one engine. behind_gateway: whether an Envoy sends requests to its port."""
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
    words += ["--middleware", MIDDLEWARE] if behind_gateway else []
    server = ("-m", "vllm.entrypoints.openai.api_server")
    return (str(vllm.python), "-X", PROCESS_MARK, *server, *words, *cache_arguments(engine), *engine.args)


def environment(pool: Pool, telemetry: str) -> Mapping[str, str]:
    """Return the environment variables of vLLM and the plug-in."""
    engine, scheduling = pool.spec.engine, pool.spec.scheduling
    variables = {
        "PENSTOCK_POLICY": scheduling.policy,
        "PENSTOCK_TIME_MODEL": engine.time_model,
        "PENSTOCK_TELEMETRY": telemetry,
        "PENSTOCK_AGING_S": f"{scheduling.aging_timeout_s:g}",
    }
    if engine.direct:
        variables |= {"PENSTOCK_TICKETS": "required", "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": str(KEEP_ALIVE_S)}
    if engine.speculation is not None:
        variables["PENSTOCK_ACCEPTANCE"] = f"{engine.speculation.acceptance:g}"
    if key := engine_key(os.environ):
        variables["VLLM_API_KEY"] = key
    return variables


def _find_python(given: Path | None) -> Path:
    python = given or _default_python()
    if python is None:
        raise Failure(
            "--engine vllm: found no vLLM in this Python environment or on PATH; give the Python that has it "
            f"with --vllm-python or {PYTHON_VARIABLE}",
            bad_input=True,
        )
    try:
        found = subprocess.run(
            [python, "-c", FIND_MODULES], capture_output=True, timeout=FIND_TIMEOUT_S, check=True
        )
        missing = json.loads(found.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError):
        raise Failure(f"--vllm-python {python}: not a working Python", bad_input=True) from None
    if "vllm" in missing:
        raise Failure(f"--vllm-python {python}: has no vLLM; pip install vllm there", bad_input=True)
    if missing:
        raise Failure(
            f"--vllm-python {python}: has vLLM but not Penstock's scheduler; pip install "
            "penstock-vllm-plugin there",
            bad_input=True,
        )
    return python


def _default_python() -> Path | None:
    """Return the Python of the variable, this one if it has vLLM, or that of the `vllm` on PATH."""
    if named := os.environ.get(PYTHON_VARIABLE):
        return Path(named)
    if find_spec("vllm") is not None:
        return Path(sys.executable)
    command = shutil.which("vllm")
    return None if command is None else Path(command).resolve().parent / "python"
