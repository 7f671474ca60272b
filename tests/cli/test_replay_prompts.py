"""Prompts have the trace's token counts and shared prefixes."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from penstock_cli.replay.prompts import PromptGenerator
from penstock_cli.replay.request_bodies import ReplayEndpoint, RequestBodies
from penstock_cli.replay.schedule import MOONCAKE_BLOCK_TOKENS as BLOCK_TOKENS
from penstock_cli.traces import TraceRequest

PROMPTS = PromptGenerator(seed=1)


def ids(tokens: int, blocks: tuple[int, ...] = (), own: int = 0) -> list[int]:
    found: list[int] = json.loads(PROMPTS.token_ids(tokens, blocks, own))
    return found


@given(st.integers(1, 40_000), st.integers(0, 10**9))
@example(BLOCK_TOKENS, 1)
@example(40_000, 1)
def test_a_prompt_has_exactly_its_tokens(tokens: int, own: int) -> None:
    found = ids(tokens, own=own)
    assert len(found) == tokens
    assert all(1000 <= token < 10_000 for token in found)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_unrelated_prompts_share_no_blocks(one: int, other: int) -> None:
    assert (ids(600, own=one)[:16] == ids(600, own=other)[:16]) == (one == other)


def test_equal_hash_ids_give_equal_prefixes() -> None:
    one, other = ids(1200, (7, 8, 9), own=1), ids(1200, (7, 8, 10), own=2)
    assert one[: 2 * BLOCK_TOKENS] == other[: 2 * BLOCK_TOKENS]
    assert one[2 * BLOCK_TOKENS :] != other[2 * BLOCK_TOKENS :]


@pytest.mark.parametrize("block_tokens", [16, 20_000])
def test_blocks_have_the_tokens_of_their_hash_id(block_tokens: int) -> None:
    prompts = PromptGenerator(1, block_tokens)
    one, other = (
        json.loads(prompts.token_ids(2 * block_tokens + 5, blocks, own))
        for own, blocks in enumerate([(7, 8), (7, 9)])
    )
    assert len(one) == len(other) == 2 * block_tokens + 5
    assert one[:block_tokens] == other[:block_tokens]
    assert one[block_tokens : block_tokens + 3] != other[block_tokens : block_tokens + 3]


@pytest.mark.parametrize("blocks", [(7, 8), (7, 1_000_008)])
def test_texts_share_the_prefixes_that_the_hash_ids_share(blocks: tuple[int, ...]) -> None:
    prompts = PromptGenerator(1, 16)
    one, other, unlike = (
        prompts.text(48, ids, own).split() for own, ids in enumerate([blocks, blocks, (7, 5)])
    )
    assert one[:32] == other[:32] and one[32:35] != other[32:35]
    assert one[:16] == unlike[:16] and one[16:19] != unlike[16:19]


def test_chats_with_the_same_hash_ids_share_a_prefix() -> None:
    bodies = RequestBodies(ReplayEndpoint.CHAT, "m", False, 8192, PromptGenerator(1, 16))
    one, other = (
        json.loads(bodies.body(TraceRequest(0.0, 64, 20, prefix_blocks=(3, 4), number=own)))["messages"][0][
            "content"
        ]
        for own in (1, 2)
    )
    assert one[: 32 * 4] == other[: 32 * 4]
    assert one != other


def test_the_same_seed_gives_the_same_prompts() -> None:
    assert PromptGenerator(5).token_ids(100, (), 3) == PromptGenerator(5).token_ids(100, (), 3)
    assert PromptGenerator(5).token_ids(100, (), 3) != PromptGenerator(6).token_ids(100, (), 3)


@given(st.integers(1, 40_000), st.integers(0, 10**6))
@example(16_384, 16_383)
@example(1, 16_384)
def test_text_has_four_bytes_a_token(tokens: int, own: int) -> None:
    words = PROMPTS.text(tokens, (), own)
    assert len(words) == 4 * tokens
    assert all(len(word) == 3 and word.isdigit() for word in words.split())


def body(endpoint: ReplayEndpoint, simulated: bool, prompt_tokens: int = 100) -> dict[str, Any]:
    bodies = RequestBodies(endpoint, "m", simulated, 8192, PROMPTS)
    found: dict[str, Any] = json.loads(bodies.body(TraceRequest(0.0, prompt_tokens, 20, number=3)))
    return found


def test_a_real_engine_gets_the_length() -> None:
    reported = body(ReplayEndpoint.COMPLETIONS, simulated=False)
    assert (reported["max_tokens"], reported["ignore_eos"]) == (20, True)
    assert reported["stream_options"] == {"include_usage": True}
    assert reported["stream"] is True
    assert "vllm_xargs" not in reported


def test_a_simulated_engine_gets_the_length_in_a_field_that_the_planner_ignores() -> None:
    reported = body(ReplayEndpoint.COMPLETIONS, simulated=True)
    assert reported["max_tokens"] == 4096
    assert reported["vllm_xargs"] == {"simulated_output_tokens": 20}
    assert body(ReplayEndpoint.COMPLETIONS, simulated=True, prompt_tokens=8000)["max_tokens"] == 192


def test_a_simulated_engine_gets_the_length_of_thinking() -> None:
    bodies = RequestBodies(ReplayEndpoint.CHAT, "m", True, 8192, PROMPTS)
    reported = json.loads(bodies.body(TraceRequest(0.0, 100, 20, thinking_tokens=15, number=3)))
    assert reported["vllm_xargs"] == {"simulated_output_tokens": 20, "simulated_thinking_tokens": 15}


def test_chat_counts_the_templates_tokens() -> None:
    (message,) = body(ReplayEndpoint.CHAT, simulated=True)["messages"]
    assert len(message["content"]) == 4 * 96 - 1


def test_a_requests_own_blocks_are_not_shared() -> None:
    own = ids(4 * BLOCK_TOKENS)
    shared = ids(12 * BLOCK_TOKENS, blocks=tuple(range(12)))
    heads = [
        tuple(found[at : at + 3]) for found in (own, shared) for at in range(0, len(found), BLOCK_TOKENS)
    ]
    assert len(set(heads)) == 16


@pytest.mark.parametrize("later", [1, 1125, 1_265_625], ids=["one", "second digit", "third digit"])
def test_blocks_far_from_one_another_begin_differently(later: int) -> None:
    """Their numbers have three digits of base 9000. Of the last two pairs all lower digits are equal."""
    assert ids(3, own=0) != ids(3, own=later)


def test_an_answer_is_sampled_greedily_and_never_longer_than_the_simulated_one() -> None:
    bodies = RequestBodies(ReplayEndpoint.COMPLETIONS, "m", True, None, PROMPTS)
    reported = json.loads(bodies.body(TraceRequest(0.0, 10, 5000, number=3)))
    assert (reported["temperature"], reported["max_tokens"]) == (0, 5000)
    assert json.loads(bodies.body(TraceRequest(0.0, 10, 5, number=3)))["max_tokens"] == 4086


@pytest.mark.parametrize(("prompt_tokens", "words"), [(1, 1), (5, 1), (6, 2)])
def test_a_short_chat_has_at_least_a_word(prompt_tokens: int, words: int) -> None:
    (message,) = body(ReplayEndpoint.CHAT, simulated=True, prompt_tokens=prompt_tokens)["messages"]
    assert len(message["content"].split()) == words
