"""The Python that `make vllm-env` made for serving: vLLM, torch and this project's plug-in."""

from pathlib import Path

from penstock_simulator.real_vllm import location


def path() -> Path:
    """The interpreter."""
    folder = location.folder()
    return folder.with_name(f"{folder.name}-serving") / "bin" / "python"


def is_ready() -> bool:
    """Whether it is here."""
    return path().is_file()
