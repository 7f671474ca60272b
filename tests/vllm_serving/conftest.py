"""Real vLLM servers, started once for all tests. Where `make vllm-env` has not put vLLM, there are none."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import python
from served.model import write_adapter, write_model
from served.server import Server, serving

collect_ignore_glob = [] if python.is_ready() else ["test_*.py"]

ADAPTERS = ("--enable-lora", "--max-loras", "2")
"""Room for one more than there are: in vLLM 0.32 on a CPU, whoever wants none gets the last that has room."""

DRAFTING = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 2}'


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of 32-bit floats, in which two tokens are never nearly as likely as one another."""
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    return write_adapter(tmp_path_factory.mktemp("adapter"), model)


@pytest.fixture(scope="session")
def plain(model: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Unmodified vLLM: the other servers must return its greedy answers."""
    flags = (*ADAPTERS, "--lora-modules", f"other={adapter}", "--no-enable-prefix-caching")
    with serving(model, tmp_path_factory.mktemp("plain"), *flags) as server:
        yield server


@pytest.fixture(scope="session")
def drafting(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The plug-in over n-gram drafts and a prefix cache."""
    flags = ("--speculative-config", DRAFTING, "--enable-prefix-caching", "--enable-prompt-tokens-details")
    with serving(model, tmp_path_factory.mktemp("drafting"), *flags, steered=True, blocks=12) as server:
        yield server


@pytest.fixture(scope="session")
def adapting(model: Path, adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The plug-in with an adapter beside the model."""
    flags = (*ADAPTERS, "--lora-modules", f"other={adapter}")
    with serving(model, tmp_path_factory.mktemp("adapting"), *flags, steered=True, blocks=12) as server:
        yield server
