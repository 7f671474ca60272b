"""Prompt tokens from bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.forecast.prompt_length import (
    FULL_WEIGHT_TOKENS,
    LEARNING_RATE,
    LEAST_BYTES_PER_TOKEN,
    PromptLength,
)

# Bytes, chat messages, tokens before anything has been learned.
FRESH = [(0, 0, 1), (1, 0, 1), (4, 0, 1), (5, 0, 2), (4000, 0, 1000), (0, 2, 8), (4000, 3, 1012)]


@pytest.mark.parametrize(("text_bytes", "messages", "tokens"), FRESH)
def test_the_estimate_starts_at_four_bytes_a_token(text_bytes: int, messages: int, tokens: int) -> None:
    assert PromptLength().estimate(text_bytes, messages) == tokens


@pytest.mark.parametrize("bytes_per_token", [1.5, 3.2, 4.0, 5.5])
def test_the_estimate_learns_the_tokenizer(bytes_per_token: float) -> None:
    known = PromptLength()
    for _ in range(200):
        known = known.observe(8000, 1, round(8000 / bytes_per_token) + 4)
    assert known.estimate(8000, 1) == pytest.approx(8000 / bytes_per_token, rel=0.02)


def test_the_estimate_is_higher_if_prompts_differ() -> None:
    known = PromptLength()
    for _ in range(200):
        known = known.observe(6000, 0, 2000).observe(6000, 0, 1200)
    assert 1500 * 1.2 < known.estimate(6000) < 2200


def test_short_prompts_teach_little() -> None:
    short, long = PromptLength().observe(20, 0, 10), PromptLength().observe(2000, 0, 1000)
    assert long.bytes_per_token < short.bytes_per_token < 4.0


@pytest.mark.parametrize(("text_bytes", "messages", "tokens"), [(0, 0, 5), (100, 2, 8), (100, 0, 0)])
def test_a_prompt_without_text_teaches_nothing(text_bytes: int, messages: int, tokens: int) -> None:
    assert PromptLength().observe(text_bytes, messages, tokens) == PromptLength()


@pytest.mark.parametrize(("tokens", "bytes_per_token"), [(1000, 16.0), (10_000_000, 0.5)])
def test_reports_outside_the_range_of_tokenizers_are_ignored(tokens: int, bytes_per_token: float) -> None:
    seen = PromptLength().observe(1_000_000, 0, tokens)
    assert seen.bytes_per_token == pytest.approx(4.0 + LEARNING_RATE * (bytes_per_token - 4.0))
    assert seen.deviation == pytest.approx(LEARNING_RATE * abs(bytes_per_token - 4.0))


def test_a_prompt_of_half_the_full_weight_teaches_half() -> None:
    assert PromptLength().observe(1, 0, 1) != PromptLength() != PromptLength().observe(5, 1, 5)
    seen = PromptLength().observe(3 * FULL_WEIGHT_TOKENS // 2, 0, FULL_WEIGHT_TOKENS // 2)
    assert seen.bytes_per_token == pytest.approx(4.0 - LEARNING_RATE / 2)


REPORTS = st.tuples(st.integers(0, 10**7), st.integers(0, 50), st.integers(0, 10**6))


@given(st.lists(REPORTS, max_size=50), st.integers(0, 10**7), st.integers(0, 100))
def test_no_report_makes_an_impossible_estimate(
    reports: list[tuple[int, int, int]], text_bytes: int, messages: int
) -> None:
    known = PromptLength()
    for report in reports:
        known = known.observe(*report)
    estimate = known.estimate(text_bytes, messages)
    assert 1 <= estimate <= text_bytes / LEAST_BYTES_PER_TOKEN + 4 * messages + 1
