"""The served model: the tiny random model of the examples, and an adapter for it."""

import subprocess
from pathlib import Path

from served import python

ROOT = Path(__file__).resolve().parents[3]


def write_model(folder: Path) -> Path:
    """The model, in this folder."""
    return _written(folder, ROOT / "examples" / "tiny_model.py", folder)


def write_adapter(folder: Path, model: Path) -> Path:
    """An adapter for that model, in this folder."""
    return _written(folder, Path(__file__).with_name("make_adapter.py"), model, folder)


def _written(folder: Path, script: Path, *arguments: Path) -> Path:
    subprocess.run([python.path(), script, *arguments], check=True, capture_output=True, timeout=300)
    return folder
