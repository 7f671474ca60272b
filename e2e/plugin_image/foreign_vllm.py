"""A Python with vLLM and nothing of ours, as vLLM's own image has it.

The environment of `bench/vllm_environment serving` finds vLLM by a `.pth`, and the project's sources by the
same. Here is one beside it that names the packages and not the sources: a `.pth` in a folder that is itself
named by one is not read.
"""

import subprocess
import sys
from pathlib import Path

from penstock_simulator.real_vllm.location import folder

OURS = ("penstock_core", "penstock_proto", "penstock_vllm")


def serving_python() -> Path:
    """Of the environment that is there. Ends the program with a line where it is not."""
    python = Path(f"{folder()}-serving") / "bin" / "python"
    if not python.exists():
        sys.exit(f"there is no {python}: run 'bench/vllm_environment serving' once")
    return python


def foreign_python(into: Path) -> Path:
    """The interpreter of a new environment. Raises AssertionError where it finds anything of ours."""
    packages = _said_by(serving_python(), "import site; print(site.getsitepackages()[0])")
    subprocess.run([serving_python(), "-m", "venv", "--without-pip", into], check=True)
    python = into / "bin" / "python"
    own = Path(_said_by(python, "import site; print(site.getsitepackages()[0])"))
    (own / "vllm.pth").write_text(f"{packages}\n{folder()}\n")
    look = f"import importlib.util as i; print([n for n in {OURS!r} if i.find_spec(n)])"
    assert _said_by(python, look) == "[]", "this Python finds the project's own sources"
    return python


def _said_by(python: Path, code: str) -> str:
    return subprocess.check_output([python, "-c", code], text=True).strip()
