"""vllm-router, the peer: a router for vLLM in Rust, from PyPI, in an environment of its own."""

import os
import shutil
import subprocess
from pathlib import Path

VERSION = "0.1.17"
PY_SPY_VERSION = "0.4.1"


def vllm_router() -> Path:
    """The peer's executable, installed once under `$XDG_CACHE_HOME/penstock`."""
    return _installed("vllm-router", VERSION)


def py_spy() -> Path:
    """The profiler's executable, likewise."""
    return _installed("py-spy", PY_SPY_VERSION)


def _installed(package: str, version: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
    environment = cache / f"{package}-{version}"
    executable = environment / "bin" / package
    if executable.exists():
        return executable
    uv = shutil.which("uv")
    if uv is None:
        raise SystemExit(
            f"{package} {version} is not in {environment}, and uv, which installs it, is not on PATH"
        )
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", "3.11", environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, f"{package}=={version}"], check=True)
    return executable
