"""Each field of a body is taken up to its bound and refused past it, and the error names the field."""

import json
from typing import Any

import pytest
from penstock_runtime.openai_errors import ApiError
from penstock_simulator.http.request_body import ApiEndpoint, CompletionRequest, read_request
from penstock_simulator.http.synthetic_text import (
    FIRST_ANSWER_ID,
    WORDS,
    answer_ids,
    answer_start,
    synthetic_text,
    token_ids,
)

CONTEXT_TOKENS = 100
HUGE = 1 << 31


def read(body: dict[str, Any], endpoint: ApiEndpoint = ApiEndpoint.COMPLETION) -> CompletionRequest:
    return read_request(json.dumps(body).encode(), endpoint, "tiny", CONTEXT_TOKENS)


def completion(**fields: Any) -> CompletionRequest:
    return read({"prompt": "hi", **fields})


def refused(**fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        completion(**fields)
    assert caught.value.status == 400
    return caught.value


BOUNDS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "temperature": ((0, 0.0, 2, 1.5, None), (-0.01, 2.01, "1", True)),
    "top_p": ((0, 1, 0.5, None), (-0.01, 1.01, "1")),
    "presence_penalty": ((-2, 2), (-2.01, 2.01)),
    "frequency_penalty": ((-2, 2), (-2.01, 2.01)),
    "seed": ((-(1 << 63), (1 << 63) - 1, None), (-(1 << 63) - 1, 1 << 63, 0.5)),
    "n": ((1, None), (0, 2, 1.0)),
    "stop": (("x", ["x", "y"], [], None), (5, ["x", 5])),
    "min_tokens": ((0, 16, None), (-1, 17)),
    "max_tokens": ((1, 99, None), (0, 100, HUGE, HUGE + 1)),
    "max_completion_tokens": ((1, 99, None), (0, 100)),
    "stream": ((True, False, None), (1, 0, "true")),
    "ignore_eos": ((True, False, None), (1, "true")),
    "return_token_ids": ((True, False, None), (1, "true")),
    "model": (("tiny", None), ("", "x" * 513, 5)),
    "vllm_xargs": (({}, None), (5, [])),
}
"""Field -> values that are taken, values that are refused. A context of 100, of which the prompt is one."""

XARGS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "penstock_id": (("x" * 256,), ("", "x" * 257, 5)),
    "penstock_tier": (("x" * 256,), ("", "x" * 257, True)),
    **{
        f"penstock_{name}_s": ((0, 0.5), (-0.01, "1", True))
        for name in ("spent", "ttft", "tpot", "e2e", "answer_tpot")
    },
    "penstock_value": ((0, 2.5), (-0.01, "1")),
    "penstock_output_tokens": ((1, HUGE), (0, HUGE + 1, 1.5)),
    "penstock_sure_tokens": ((0, HUGE), (-1, HUGE + 1)),
    "penstock_best_effort": ((True, False), (1, "true")),
    "penstock_other": (("x", 1, 1.5, True), ([], {})),
    "simulated_output_tokens": ((1, HUGE), (0, HUGE + 1)),
    "simulated_thinking_tokens": ((0, HUGE), (-1, HUGE + 1)),
    "of_someone_else": (([1], {}, "x"), ()),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_a_field_is_accepted_up_to_its_bounds(name: str) -> None:
    taken, not_taken = BOUNDS[name]
    for value in taken:
        completion(**{name: value})
    for value in not_taken:
        assert refused(**{name: value}).param == name, value


@pytest.mark.parametrize("name", XARGS)
def test_an_extra_field_is_accepted_up_to_its_bounds(name: str) -> None:
    taken, not_taken = XARGS[name]
    for value in taken:
        assert completion(vllm_xargs={name: value, "gone": None}).xargs == {name: value}
    for value in not_taken:
        assert refused(vllm_xargs={name: value}).param == f"vllm_xargs.{name}", value


def test_a_model_of_the_longest_name_is_another_one() -> None:
    with pytest.raises(ApiError) as caught:
        completion(model="x" * 512)
    assert (caught.value.status, caught.value.code) == (404, "model_not_found")


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("x" * 8, 2), (["x" * 9], 3), ([1, 0, 2], 3), ([[1, 2]], 2), ([7], 1), ([0] * 99, 99)],
)
def test_a_prompt_is_a_text_or_token_ids(prompt: Any, tokens: int) -> None:
    assert read({"prompt": prompt}).prompt_tokens == tokens


@pytest.mark.parametrize("prompt", [None, "", [], [[]], ["a", "b"], [[1], [2]], [1, -1], [1, True], [1.5], 5])
def test_anything_else_is_no_prompt(prompt: Any) -> None:
    assert refused(prompt=prompt).param == "prompt"


@pytest.mark.parametrize(
    ("content", "tokens"),
    [
        ("x" * 5, 2),
        (None, 0),
        ([], 0),
        ([{"type": "text", "text": "xxxx"}, {"text": "y"}], 2),
        ([{"type": "image_url"}], 0),
    ],
)
def test_a_message_counts_its_texts_and_its_template(content: Any, tokens: int) -> None:
    message = {"role": "user", "content": content}
    request = read({"messages": [message, message]}, ApiEndpoint.CHAT)
    assert request.prompt_tokens == 2 * (4 + tokens)
    assert request.max_tokens == CONTEXT_TOKENS - request.prompt_tokens, "the rest of the context"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ({}, "messages"),
        ([], "messages"),
        ([{"role": "user"}, 5], "messages[1]"),
        ([{"role": 5}], "messages[0].role"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content"),
        ([{"role": "user", "content": [{"text": 5}]}], "messages[0].content"),
        ([{"role": "user", "content": "x" * 4 * 96}], "messages"),
    ],
)
def test_a_message_that_is_none_is_named(messages: Any, param: str) -> None:
    with pytest.raises(ApiError) as caught:
        read({"messages": messages}, ApiEndpoint.CHAT)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_a_context_leaves_room_for_one_token() -> None:
    assert read({"prompt": [1] * 99}).max_tokens == 1
    full = refused(prompt=[1] * 100)
    assert (full.param, full.code) == ("prompt", "context_length_exceeded")


@pytest.mark.parametrize(
    ("fields", "max_tokens"),
    [
        ({}, 16),
        ({"prompt": [1] * 90}, 10),
        ({"max_tokens": None}, 99),
        ({"max_tokens": 30}, 30),
        ({"max_tokens": 30, "max_completion_tokens": 20}, 20),
        ({"max_completion_tokens": 1}, 1),
    ],
)
def test_a_limit_is_asked_for_or_the_default(fields: dict[str, Any], max_tokens: int) -> None:
    assert completion(**fields).max_tokens == max_tokens


def test_the_limit_that_is_too_large_is_named() -> None:
    newer = refused(max_completion_tokens=100, max_tokens=5)
    assert (newer.param, newer.code) == ("max_completion_tokens", "context_length_exceeded")
    assert refused(max_tokens=100).code == "context_length_exceeded"


GENERATED = [5, *answer_ids(range(2), 0)]
"""A prompt that ends with two generated tokens."""


@pytest.mark.parametrize(
    ("fields", "answer_tokens"),
    [
        ({}, None),
        ({"ignore_eos": False}, None),
        ({"ignore_eos": True}, 16),
        ({"vllm_xargs": {"simulated_output_tokens": 1}}, 1),
        ({"vllm_xargs": {"simulated_output_tokens": 17}, "ignore_eos": True}, 16),
        ({"vllm_xargs": {"simulated_output_tokens": 15}, "ignore_eos": True}, 15),
        ({"vllm_xargs": {"simulated_output_tokens": 15}, "prompt": GENERATED}, 13),
        ({"vllm_xargs": {"simulated_output_tokens": 2}, "prompt": GENERATED}, 1),
    ],
)
def test_an_answers_length_may_be_given(fields: dict[str, Any], answer_tokens: int | None) -> None:
    assert completion(**fields).answer_tokens == answer_tokens


def test_absent_fields_have_their_defaults() -> None:
    assert completion() == CompletionRequest(
        ApiEndpoint.COMPLETION,
        prompt_tokens=1,
        max_tokens=16,
        min_tokens=0,
        answer_tokens=None,
        thinking_tokens=0,
        answer=answer_start(token_ids("hi")),
        prompt_ids=None,
        stream=False,
        include_usage=False,
        block_keys=(),
        xargs={},
    )
    thinking = completion(min_tokens=2, vllm_xargs={"simulated_thinking_tokens": 3})
    assert (thinking.min_tokens, thinking.thinking_tokens) == (2, 3)


def test_token_ids_are_those_of_the_prompt() -> None:
    assert completion(return_token_ids=True).prompt_ids == token_ids("hi")
    assert completion(return_token_ids=True, prompt=[[7, 8]]).prompt_ids == [7, 8]
    messages = [{"role": "user", "content": "abcdefgh"}, {"role": "user", "content": "ij"}]
    chat = read({"messages": messages, "return_token_ids": True}, ApiEndpoint.CHAT)
    assert chat.prompt_ids == [0, 1, 2, 3, *token_ids("abcdefgh"), 0, 1, 2, 3, *token_ids("ij")]
    assert chat.prompt_tokens == len(chat.prompt_ids)


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_the_end_of_a_prompt_chooses_the_answer(count: int) -> None:
    messages = [{"role": "user", "content": f"{number:>12}" * 2} for number in range(count)]
    chat = read({"messages": messages, "return_token_ids": True}, ApiEndpoint.CHAT)
    assert chat.prompt_ids is not None
    assert chat.answer == answer_start(chat.prompt_ids)
    text = completion(prompt="".join(str(message["content"]) for message in messages), return_token_ids=True)
    assert text.prompt_ids is not None
    assert text.answer == answer_start(text.prompt_ids)
    assert completion(prompt=GENERATED).answer == (answer_start([5]).text_seed, 2)


def test_usage_is_sent_to_streams_that_request_it() -> None:
    assert completion(stream=True, stream_options={"include_usage": True}).include_usage
    assert not completion(stream=True, stream_options={}).include_usage
    assert not completion(stream_options={}).stream
    assert refused(stream_options={"include_usage": True}).param == "stream_options"
    wrong = refused(stream=True, stream_options={"include_usage": 1})
    assert wrong.param == "stream_options.include_usage"


@pytest.mark.parametrize(
    ("value", "shown"), [("x" * 58, f'"{"x" * 58}"'), ("x" * 59, f'"{"x" * 56}…'), (True, "true")]
)
def test_an_invalid_value_is_shown_up_to_sixty_characters(value: Any, shown: str) -> None:
    assert refused(temperature=value).message == f"temperature: must be a number from 0 to 2, not {shown}"
    least = refused(vllm_xargs={"penstock_value": value})
    assert least.message == f"vllm_xargs.penstock_value: must be a number from 0, not {shown}"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"5", b'{"prompt": "\xff"}'])
def test_a_body_that_is_not_an_object_is_refused(body: bytes) -> None:
    with pytest.raises(ApiError) as caught:
        read_request(body, ApiEndpoint.CHAT, "tiny", CONTEXT_TOKENS)
    assert (caught.value.status, caught.value.code) == (400, "invalid_json")


def test_the_seed_determines_the_words() -> None:
    assert synthetic_text(range(3), 0) == "".join(WORDS[:3])
    assert synthetic_text(range(2, 4), 9) == WORDS[15] + WORDS[18], "every third, from the tenth"
    assert synthetic_text([len(WORDS)], 7) == WORDS[7], "it goes round"
    assert {len(word) for word in WORDS} == {4}


def test_a_token_is_four_bytes() -> None:
    assert token_ids("abcd\0\0\1") == [int.from_bytes(b"abcd", "big") % FIRST_ANSWER_ID, 1]
    assert token_ids("abcdabcd") == token_ids("abcd") * 2
    assert token_ids("") == []
