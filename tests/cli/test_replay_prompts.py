"""Prompts have the trace's token counts, and share what the trace says they share."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock_cli.replay.prompts import BLOCK_TOKENS, PromptGenerator
from penstock_cli.replay.request_bodies import ReplayEndpoint, RequestBodies
from penstock_cli.traces import TraceRequest

PROMPTS = PromptGenerator(seed=1)


def ids(tokens: int, blocks: tuple[int, ...] = (), own: int = 0) -> list[int]:
    found: list[int] = json.loads(PROMPTS.token_ids(tokens, blocks, own))
    return found


@given(st.integers(1, 40_000), st.integers(0, 10**9))
def test_a_prompt_has_exactly_its_tokens(tokens: int, own: int) -> None:
    found = ids(tokens, own=own)
    assert len(found) == tokens
    assert all(1000 <= token < 10_000 for token in found)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_prompts_share_nothing_by_accident(one: int, other: int) -> None:
    assert (ids(600, own=one)[:16] == ids(600, own=other)[:16]) == (one == other)


def test_equal_blocks_are_equal_prefixes() -> None:
    one, other = ids(1200, (7, 8, 9), own=1), ids(1200, (7, 8, 10), own=2)
    assert one[: 2 * BLOCK_TOKENS] == other[: 2 * BLOCK_TOKENS]
    assert one[2 * BLOCK_TOKENS :] != other[2 * BLOCK_TOKENS :]


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert PromptGenerator(5).token_ids(100, (), 3) == PromptGenerator(5).token_ids(100, (), 3)
    assert PromptGenerator(5).token_ids(100, (), 3) != PromptGenerator(6).token_ids(100, (), 3)


@given(st.integers(1, 40_000), st.integers(0, 10**6))
def test_text_has_four_bytes_a_token(tokens: int, own: int) -> None:
    assert len(PROMPTS.text(tokens, own)) == 4 * tokens


def body(endpoint: ReplayEndpoint, simulated: bool, prompt_tokens: int = 100) -> dict[str, Any]:
    bodies = RequestBodies(endpoint, "m", simulated, 8192, PROMPTS)
    found: dict[str, Any] = json.loads(bodies.body(TraceRequest(0.0, prompt_tokens, 20), 3))
    return found


def test_a_real_engine_is_told_the_length() -> None:
    reported = body(ReplayEndpoint.COMPLETIONS, simulated=False)
    assert (reported["max_tokens"], reported["ignore_eos"]) == (20, True)
    assert reported["stream_options"] == {"include_usage": True}
    assert reported["stream"] is True
    assert "vllm_xargs" not in reported


def test_a_simulated_engine_is_told_where_the_planner_does_not_look() -> None:
    reported = body(ReplayEndpoint.COMPLETIONS, simulated=True)
    assert reported["max_tokens"] == 4096
    assert reported["vllm_xargs"] == {"simulated_output_tokens": 20}
    assert body(ReplayEndpoint.COMPLETIONS, simulated=True, prompt_tokens=8000)["max_tokens"] == 192


def test_a_simulated_engine_is_told_how_much_of_the_answer_is_thinking() -> None:
    bodies = RequestBodies(ReplayEndpoint.CHAT, "m", True, 8192, PROMPTS)
    reported = json.loads(bodies.body(TraceRequest(0.0, 100, 20, thinking_tokens=15), 3))
    assert reported["vllm_xargs"] == {"simulated_output_tokens": 20, "simulated_thinking_tokens": 15}


def test_chat_counts_the_templates_tokens() -> None:
    (message,) = body(ReplayEndpoint.CHAT, simulated=True)["messages"]
    assert len(message["content"]) == 4 * 96 - 1
