"""Marks of prompts: two prompts share marks as far as their JSON is equal."""

import json
from typing import Any

import pytest
from penstock_runtime.prompt_marks import MOST_MARKS, PIECE_BYTES, UNMARKED, PromptMarks, prompt_marks


def marks(**body: Any) -> PromptMarks:
    return prompt_marks(json.dumps(body, separators=(",", ":")).encode())


def common(one: PromptMarks, other: PromptMarks) -> int:
    """How many marks they begin with."""
    pairs = zip(one.marks, other.marks, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one.marks), len(other.marks)))


def conversation(*contents: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": content} for content in contents]


def test_a_turn_has_all_marks_of_the_previous_turn() -> None:
    first = marks(messages=conversation("system", "x" * 3 * PIECE_BYTES))
    second = marks(messages=conversation("system", "x" * 3 * PIECE_BYTES, "next"))
    assert len(first.marks) == 1 + 4
    assert second.marks[:-1] == first.marks
    assert (
        second.size
        > first.size
        == len(json.dumps(conversation("system")[0], separators=(",", ":")))
        + len(json.dumps(conversation("x" * 3 * PIECE_BYTES)[0], separators=(",", ":")))
    )


def test_marks_differ_from_where_prompts_differ() -> None:
    text = "y" * 4 * PIECE_BYTES
    one, other = marks(prompt=text + "a"), marks(prompt=text + "b")
    assert common(one, other) == 4
    assert common(one, marks(prompt="z" + text)) == 0
    assert common(marks(messages=conversation("a", "b")), marks(messages=conversation("ab"))) == 0


def test_token_ids_are_never_split() -> None:
    ids = list(range(2000))
    one, longer = marks(prompt=ids), marks(prompt=[*ids, 7])
    assert one.token_ids
    same = common(one, longer)
    assert 1900 - PIECE_BYTES < one.marks[same - 1].size < 2000
    assert one.marks[same - 1].size == json.dumps(ids, separators=(",", ":"))[1:][: same * PIECE_BYTES].count(
        ","
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", "b"),
        ("tools", [1]),
        ("cache_salt", "s"),
        ("chat_template_kwargs", {"a": 1}),
        ("documents", []),
        ("truncate_prompt_tokens", 9),
    ],
)
def test_a_field_that_changes_the_prompt_or_its_sharing_changes_every_mark(field: str, value: Any) -> None:
    plain = {"model": "a", "messages": conversation("x")}
    assert common(marks(**plain), marks(**{**plain, field: value})) == 0


def test_fields_that_change_only_the_answer_change_no_mark() -> None:
    plain = {"model": "a", "messages": conversation("x")}
    assert marks(**plain) == marks(**plain, temperature=0.5, max_tokens=7, stream=True)


@pytest.mark.parametrize("prompt", [b"[]", b"[ ]", b'["a","b"]', b"[[1],[2]]", b"7", b"[[[1]]]"])
def test_other_prompts_have_no_marks(prompt: bytes) -> None:
    assert prompt_marks(b'{"prompt":' + prompt + b"}") == UNMARKED


def test_messages_beside_a_prompt_have_no_marks() -> None:
    messages = conversation("x")
    assert marks(messages=messages, prompt="y") == UNMARKED  # a completion would be taken for this chat
    assert marks(messages=messages, prompt=None) == marks(messages=messages) != UNMARKED


def test_a_text_of_numbers_is_not_the_prompt_with_these_token_ids() -> None:
    ids = list(range(2000))
    text = json.dumps(ids, separators=(",", ":"))[1:-1]
    of_ids, of_text = ({mark.key for mark in marks(prompt=prompt).marks} for prompt in (ids, text))
    assert of_ids.isdisjoint(of_text)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b"\xff"])
def test_invalid_bodies_have_no_marks(body: bytes) -> None:
    assert prompt_marks(body) == UNMARKED
    assert UNMARKED.size == 0


def test_a_list_of_one_prompt_is_that_prompt() -> None:
    assert marks(prompt=["once"]) == marks(prompt="once") != UNMARKED
    assert marks(prompt=[[1, 2]]) == marks(prompt=[1, 2]) != UNMARKED


@pytest.mark.parametrize("count", [1, 2, 1000])
def test_the_last_mark_has_all_token_ids(count: int) -> None:
    assert marks(prompt=list(range(count))).size == count


def test_marks_are_bounded() -> None:
    assert len(marks(messages=conversation(*["x"] * (MOST_MARKS + 9))).marks) == MOST_MARKS
