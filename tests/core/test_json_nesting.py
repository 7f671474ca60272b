"""How deep a JSON text is nested, beside a parser that counts."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from penstock_core.json_nesting import MOST_LEVELS, nested_deeper

TEXT = st.text(alphabet='ab"\\[]{}:,\n')
JSON = st.recursive(
    st.none() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=40,
)


def levels_of(value: Any) -> int:
    if isinstance(value, dict):
        value = list(value.values())
    return 1 + max(map(levels_of, value), default=0) if isinstance(value, list) else 0


@given(JSON, st.integers(0, 6))
def test_a_text_is_as_deep_as_a_parser_finds_it(value: Any, levels: int) -> None:
    assert nested_deeper(json.dumps(value).encode(), levels) is (levels_of(value) > levels)


def test_the_bound_itself_is_allowed() -> None:
    assert not nested_deeper(b"[" * MOST_LEVELS + b"]" * MOST_LEVELS)
    assert nested_deeper(b"[" * (MOST_LEVELS + 1) + b"]" * (MOST_LEVELS + 1))


def test_many_brackets_in_texts_are_not_deep() -> None:
    assert not nested_deeper(json.dumps({"a": "[" * 1000, 'b\\"': ['\\"{"' * 100]}).encode())
