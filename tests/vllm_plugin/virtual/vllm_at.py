"""The vLLM that these tests run: the version PENSTOCK_VLLM, installed by `make vllm-env`."""

import os
import sys

from penstock_simulator.real_vllm import location

RELEASE = os.environ.get("PENSTOCK_VLLM", "0.32")


def is_ready() -> bool:
    """Whether that vLLM is here."""
    return location.is_ready() and (RELEASE == "0.32" or (location.newer_folder() / location.READY).is_file())


def load() -> None:
    """Import it."""
    if RELEASE != "0.32":
        sys.path += [str(location.newer_folder()), str(location.folder())]
    location.load()
