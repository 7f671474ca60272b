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


def test_thirteen_engines_are_built_in_by_name() -> None:
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


# ms of 64 decodes with 2,048 tokens of context each, of a prompt of 4,096 tokens, and of 64 and 4,096 tokens
# with four drafter steps; tokens of KV cache.
FIGURES = [
    ("llama-3-8b-a100", (26.581, 258.8882, 20.2639, 236.8176), 426784),
    ("llama-3-70b-4xa100", (46.0902, 755.0867, 41.3535, 725.1972), 448288),
    ("qwen2.5-7b-a100", (20.0161, 237.2814, 19.2387, 221.327), 989984),
    ("opt-13b-a100", (91.9989, 422.7066, 27.4267, 385.5578), 56512),
    ("opt-13b-h100", (52.3912, 187.7353, 13.701, 177.7814), 56512),
    ("llama-3-8b-h100", (13.4422, 90.1894, 10.3649, 84.8279), 426784),
    ("llama-3-70b-4xh100", (23.9235, 395.2468, 21.5058, 386.9029), 448288),
    ("slos-serve-opt-6.7b-a100", (29.2019, 311.1721, 29.2069, 325.0121), 43296),
    ("slos-serve-opt-13b-2xa100", (36.3463, 327.1745, 49.7063, 340.5345), 56512),
    ("slos-serve-opt-30b-4xa100", (43.841, 419.3814, 55.041, 430.5814), 61104),
    ("slos-serve-opt-13b-h100", (30.1033, 198.5199, 30.1033, 198.5199), 56512),
    ("slos-serve-toolllama-7b-a100", (31.7261, 296.7091, 31.7261, 296.7091), 42944),
    ("slos-serve-r1-distill-1.5b-a100", (36.7024, 1212.4336, 36.7024, 1212.4336), 1131760),
]


@pytest.mark.parametrize(("name", "ms", "kv_tokens"), FIGURES)
def test_builtin_engines_have_the_figures_that_plans_use(
    name: str, ms: tuple[float, ...], kv_tokens: int
) -> None:
    model = time_model(name)
    decodes, *drafted = [
        model.seconds(work)
        for work in (BatchWork(64, 64 * 2048), BatchWork(64, spec_steps=4), BatchWork(4096, spec_steps=4))
    ]
    figures_s = [decodes, model.prefill_seconds(4096), *drafted]
    assert figures_s == pytest.approx([of_work / 1e3 for of_work in ms], abs=1e-7)
    assert kv_cache_tokens(name) == kv_tokens


def test_a_measured_engine_adds_attention_and_overhead_to_its_roofline() -> None:
    work = BatchWork(2048, context_tokens=100_000, prefill_work=1e6)
    expected_ms = 0.05468427 * 2048 + 5.9908591 + 7.7492812e-5 * 1e5 + 3.088785e-6 * 1e6 + 3
    assert time_model("llama-3-8b-a100").seconds(work) * 1e3 == pytest.approx(expected_ms)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_the_kv_cache_fills_the_memory_beside_the_weights_in_whole_blocks(name: str) -> None:
    builtin = BUILTINS[name]
    tokens = kv_cache_tokens(name)
    left_bytes = (0.9 * builtin.memory_gb - builtin.weights_gb) * 1e9
    assert tokens % 16 == 0
    assert tokens * builtin.kv_token_bytes <= left_bytes < (tokens + 16) * builtin.kv_token_bytes


def test_the_papers_small_opt_has_the_memory_it_states() -> None:
    assert kv_cache_tokens("slos-serve-opt-6.7b-a100") == 43_296


def test_an_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UnknownTimeModel) as caught:
        time_model("llama-4")
    assert str(caught.value).startswith(
        "no built-in time model is called 'llama-4'; there are: llama-3-8b-a100"
    )
    assert set(caught.value.known) == NAMES
