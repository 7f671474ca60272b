"""How a JSON text is nested, beside a parser that counts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.json_nesting import MOST_LEVELS, MOST_STRUCTURES, Nesting, nesting_of

TEXT = st.text(alphabet='ab"\\[]{}:,\n')
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=40,
)
PADDING: list[list[Any]] = [[] for _ in range(MOST_LEVELS)]


def counted(value: Any) -> Nesting:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return Nesting(0, 0)
    inner = [counted(part) for part in value]
    return Nesting(1 + max((part.levels for part in inner), default=0), 1 + sum(i.structures for i in inner))


@given(JSON)
def test_the_depth_of_a_text_equals_that_of_a_parser(value: Any) -> None:
    assert nesting_of(json.dumps([value, *PADDING]).encode()) == counted([value, *PADDING])


@given(JSON)
def test_the_depth_of_a_small_text_is_never_underestimated(value: Any) -> None:
    found, true = nesting_of(json.dumps(value).encode()), counted(value)
    assert found.levels >= true.levels and found.structures >= true.structures


@pytest.mark.parametrize(
    ("text", "too_much"),
    [
        (b"[" * MOST_LEVELS + b"]" * MOST_LEVELS, ""),
        (b"[" * (MOST_LEVELS + 1) + b"]" * (MOST_LEVELS + 1), "nested deeper than 100 levels"),
        (b"[" + b"[]," * (MOST_STRUCTURES - 2) + b"{}]", ""),
        (b"[" + b"[]," * MOST_STRUCTURES + b"{}]", "made of more than 65536 arrays and objects"),
        (json.dumps({"a": "[" * 1000, 'b\\"': ['\\"{"' * 100]}).encode(), ""),
    ],
    ids=["deepest", "too deep", "most", "too many", "brackets in texts"],
)
def test_each_bound_is_named_when_exceeded(text: bytes, too_much: str) -> None:
    assert nesting_of(text).too_much == too_much
