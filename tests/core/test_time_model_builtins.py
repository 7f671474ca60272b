"""The models that come with Penstock: their names, their constants, their memory."""

import pytest
from penstock_core.timing.builtin_models import (
    BUILTINS,
    UnknownTimeModel,
    kv_cache_tokens,
    time_model,
)
from penstock_core.timing.time_model import BatchWork

NAMES = {
    "llama-3-8b-a100",
    "llama-3-70b-4xa100",
    "qwen2.5-7b-a100",
    "opt-13b-a100",
    "opt-13b-h100",
    "llama-3-8b-h100",
    "llama-3-70b-4xh100",
    "slos-serve-opt-6.7b-a100",
    "slos-serve-opt-13b-2xa100",
    "slos-serve-opt-30b-4xa100",
    "slos-serve-opt-13b-h100",
    "slos-serve-toolllama-7b-a100",
    "slos-serve-r1-distill-1.5b-a100",
}


def test_there_are_thirteen_by_name() -> None:
    assert set(BUILTINS) == NAMES
    assert {time_model(name).name for name in NAMES} == NAMES


# Tokens, drafter steps, ms as the paper's formula gives them.
PAPER = [
    ("slos-serve-opt-6.7b-a100", 1000, 0, 93.58),
    ("slos-serve-opt-6.7b-a100", 4000, 0, 303.95),
    ("slos-serve-opt-6.7b-a100", 1000, 8, 105.94),
    ("slos-serve-opt-13b-2xa100", 1000, 2, 110.54),
    ("slos-serve-opt-30b-4xa100", 1000, 1, 133.82),
    ("slos-serve-opt-13b-h100", 1000, 0, 69.20),
    ("slos-serve-toolllama-7b-a100", 1000, 0, 93.24),
    ("slos-serve-r1-distill-1.5b-a100", 100, 0, 47.20),
]


@pytest.mark.parametrize(("name", "tokens", "spec_steps", "ms"), PAPER)
def test_the_papers_engine_is_the_papers_formula(name: str, tokens: int, spec_steps: int, ms: float) -> None:
    assert time_model(name).seconds(BatchWork(tokens, spec_steps=spec_steps)) * 1e3 == pytest.approx(ms)


def test_a_measured_engine_adds_attention_and_overhead_to_its_roofline() -> None:
    work = BatchWork(2048, context_tokens=100_000, prefill_work=1e6)
    expected_ms = 0.05468427 * 2048 + 5.9908591 + 7.7492812e-5 * 1e5 + 3.088785e-6 * 1e6 + 3
    assert time_model("llama-3-8b-a100").seconds(work) * 1e3 == pytest.approx(expected_ms)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_kv_cache_fills_what_the_weights_leave_in_whole_blocks(name: str) -> None:
    builtin = BUILTINS[name]
    tokens = kv_cache_tokens(name)
    left_bytes = (0.9 * builtin.memory_gb - builtin.weights_gb) * 1e9
    assert tokens % 16 == 0
    assert tokens * builtin.kv_token_bytes <= left_bytes < (tokens + 16) * builtin.kv_token_bytes


def test_the_papers_small_opt_has_the_memory_it_states() -> None:
    assert kv_cache_tokens("slos-serve-opt-6.7b-a100") == 43_296


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(UnknownTimeModel) as caught:
        time_model("llama-4")
    assert str(caught.value).startswith(
        "no built-in time model is called 'llama-4'; there are: llama-3-8b-a100"
    )
    assert set(caught.value.known) == NAMES
