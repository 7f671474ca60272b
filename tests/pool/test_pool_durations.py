"""Durations as Kubernetes writes them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_pool.durations import (
    LONGEST_S,
    LONGEST_TEXT,
    UNIT_S,
    exact_duration,
    format_duration,
    parse_duration_s,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("800ms", 0.8), ("1.5s", 1.5), ("2m", 120.0), ("1m30s", 90.0), ("250us", 250e-6), ("24h", LONGEST_S)],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("50", '"50" has no unit; write 50ms or 0.05s'),
        ("2000", '"2000" has no unit; write 2000ms or 2s'),
        ("0.05", '"0.05" has no unit; write 0.05s or 50ms'),
        ("fast", '"fast" is not a duration; write for example 800ms, 1.5s or 2m'),
        ("", '"" is not a duration; write for example 800ms, 1.5s or 2m'),
        ("-5s", '"-5s" is not a duration; write for example 800ms, 1.5s or 2m'),
        ("5 s", '"5 s" is not a duration; write for example 800ms, 1.5s or 2m'),
        ("٥s", '"٥s" is not a duration; write for example 800ms, 1.5s or 2m'),
        ("25h", '"25h" is longer than a day; at most 24h'),
    ],
)
def test_an_invalid_duration_is_refused_with_a_valid_example(text: str, line: str) -> None:
    with pytest.raises(ValueError, match=r"\S") as error:
        parse_duration_s(text)
    assert str(error.value) == line


def test_a_text_may_be_as_long_as_its_bound() -> None:
    assert parse_duration_s("0" * (LONGEST_TEXT - 2) + "5s") == 5
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s("0" * (LONGEST_TEXT - 1) + "5s")


@given(st.lists(st.tuples(st.integers(0, 999), st.sampled_from(sorted(UNIT_S))), min_size=1, max_size=4))
def test_parts_of_a_duration_add_up(parts: list[tuple[int, str]]) -> None:
    seconds = sum(number * UNIT_S[unit] for number, unit in parts)
    text = "".join(f"{number}{unit}" for number, unit in parts)
    if seconds <= LONGEST_S:
        assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["0s", "5ms", "0.5ms", "1.5s", "60s", "90s", "2m", "5m", "1440m"])
def test_a_duration_is_written_in_its_usual_units(text: str) -> None:
    assert format_duration(parse_duration_s(text)) == text


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_an_error_of_one_line(text: str) -> None:
    try:
        assert 0 <= parse_duration_s(text) <= LONGEST_S
    except ValueError as error:
        assert text in str(error)


@given(st.floats(min_value=1e-9, max_value=LONGEST_S))
def test_an_exact_duration_reads_back_as_the_same_number(seconds: float) -> None:
    assert parse_duration_s(exact_duration(seconds)) == seconds
