"""Creates a Python environment with vLLM and without the project's code, like that of vLLM's own image.

The environment of `bench/vllm_environment serving` finds vLLM and the project's sources by `.pth` files. The
new environment names its folder of packages in a `.pth` file, and `.pth` files in such a folder are not read.
"""

import subprocess
import sys
from pathlib import Path

from penstock_simulator.real_vllm.location import folder

PROJECT_PACKAGES = ("penstock_core", "penstock_proto", "penstock_vllm")


def serving_python() -> Path:
    """Return the Python of the serving environment. Exits with a message if it does not exist."""
    python = Path(f"{folder()}-serving") / "bin" / "python"
    if not python.exists():
        sys.exit(f"there is no {python}: run 'bench/vllm_environment serving' once")
    return python


def foreign_python(into: Path) -> Path:
    """Create the environment and return its Python. Raises AssertionError if it finds the project's code."""
    packages = _output_of(serving_python(), "import site; print(site.getsitepackages()[0])")
    subprocess.run([serving_python(), "-m", "venv", "--without-pip", into], check=True)
    python = into / "bin" / "python"
    own = Path(_output_of(python, "import site; print(site.getsitepackages()[0])"))
    (own / "vllm.pth").write_text(f"{packages}\n{folder()}\n")
    code = f"import importlib.util as i; print([n for n in {PROJECT_PACKAGES!r} if i.find_spec(n)])"
    assert _output_of(python, code) == "[]", "this Python finds the project's own sources"
    return python


def _output_of(python: Path, code: str) -> str:
    return subprocess.check_output([python, "-c", code], text=True).strip()
