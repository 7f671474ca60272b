from typing import Any

import orjson
import pytest
from penstock_proto import replica_pb2 as wire
from penstock_runtime.openai_errors import ApiError
from penstock_sidecar.requests.client_body import (
    REWRITTEN_BYTES,
    XARGS_BYTES,
    ClientBody,
    check_context,
    read_body,
)

CHAT = wire.ENDPOINT_CHAT_COMPLETIONS
COMPLETIONS = wire.ENDPOINT_COMPLETIONS
HELLO = [{"role": "user", "content": "hello"}]


def completion(**fields: object) -> ClientBody:
    return read_body(COMPLETIONS, orjson.dumps({"model": "m", **fields}))


def chat(**fields: object) -> ClientBody:
    return read_body(CHAT, orjson.dumps({"model": "m", **fields}))


WRONG = [
    (COMPLETIONS, b"{", None),
    (COMPLETIONS, b"", None),
    (COMPLETIONS, b"[1]", None),
    (COMPLETIONS, b"null", None),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": NaN}', None),
    (COMPLETIONS, b'{"prompt": "\xff"}', None),
    (COMPLETIONS, b'{"prompt": "\\ud800"}', None),
    (COMPLETIONS, b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}", None),
    (COMPLETIONS, b"{}", "prompt"),
    (COMPLETIONS, b'{"prompt": null}', "prompt"),
    (COMPLETIONS, b'{"prompt": 5}', "prompt"),
    (COMPLETIONS, b'{"prompt": {}}', "prompt"),
    (COMPLETIONS, b'{"prompt": []}', "prompt"),
    (COMPLETIONS, b'{"prompt": [[]]}', "prompt"),
    (COMPLETIONS, b'{"prompt": [1, "a"]}', "prompt"),
    (COMPLETIONS, b'{"prompt": [1.5]}', "prompt"),
    (COMPLETIONS, b'{"prompt": [-1]}', "prompt"),
    (COMPLETIONS, b'{"prompt": [true]}', "prompt"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": 0}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": -3}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": "5"}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": 5.5}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "max_tokens": true}', "max_tokens"),
    (COMPLETIONS, b'{"prompt": "a", "stream": "yes"}', "stream"),
    (COMPLETIONS, b'{"prompt": "a", "stream": 1}', "stream"),
    (COMPLETIONS, b'{"prompt": "a", "n": 0}', "n"),
    (COMPLETIONS, b'{"prompt": "a", "n": 33}', "n"),
    (COMPLETIONS, b'{"prompt": "a", "n": 1000000}', "n"),
    (COMPLETIONS, b'{"prompt": "a", "best_of": 33}', "best_of"),
    (COMPLETIONS, b'{"prompt": ["a", "a"], "n": 17}', "n"),
    (COMPLETIONS, b'{"prompt": [' + b'"a",' * 16 + b'"a"], "n": 2}', "n"),
    (COMPLETIONS, b'{"prompt": [' + b'"a",' * 16 + b'"a"], "n": 1, "best_of": 2}', "best_of"),
    (COMPLETIONS, b'{"prompt": [' + b'"a",' * 32 + b'"a"]}', "prompt"),
    (COMPLETIONS, b'{"prompt": "a", "other": ' + b"[" * 100 + b"]" * 100 + b"}", None),
    (COMPLETIONS, b'{"prompt": "a", "vllm_xargs": []}', "vllm_xargs"),
    (COMPLETIONS, b'{"prompt": "a", "vllm_xargs": {"a": "' + b"a" * (1 << 16) + b'"}}', "vllm_xargs"),
    (COMPLETIONS, b'{"prompt": "a", "other": [' + b"[]," * (1 << 16) + b"1]}", None),
    (CHAT, b"{}", "messages"),
    (CHAT, b'{"messages": "hi"}', "messages"),
    (CHAT, b'{"messages": []}', "messages"),
    (CHAT, b'{"messages": ["hi"]}', "messages[0]"),
    (CHAT, b'{"messages": [{"content": "a"}, {"content": 5}]}', "messages[1].content"),
    (CHAT, b'{"messages": [{"content": ["a"]}]}', "messages[0].content"),
    (CHAT, b'{"messages": [{"content": "a"}], "max_completion_tokens": []}', "max_completion_tokens"),
]


@pytest.mark.parametrize(("endpoint", "raw", "param"), WRONG, ids=[str(raw[:60]) for _, raw, _ in WRONG])
def test_a_body_that_cannot_be_served_is_a_400_that_names_the_field(
    endpoint: wire.Endpoint.ValueType, raw: bytes, param: str | None
) -> None:
    with pytest.raises(ApiError) as refused:
        read_body(endpoint, raw)
    assert (refused.value.status, refused.value.param) == (400, param)
    assert refused.value.message


def test_prompts_of_ids_are_counted_and_prompts_of_text_measured() -> None:
    assert completion(prompt=[5, 6, 7]).prompt_token_ids == 3
    assert completion(prompt=[[1], [2, 3]]).prompt_token_ids == 2
    assert completion(prompt="schön").prompt_token_ids is None
    assert completion(prompt="schön").text_bytes == 6
    assert completion(prompt=["ab", "c"]).text_bytes == 2


def test_a_chat_is_measured_by_its_texts_and_messages() -> None:
    parts = [{"type": "text", "text": "four"}, {"type": "image_url", "image_url": {"url": "x"}}]
    body = chat(messages=[*HELLO, {"role": "user", "content": parts}, {"role": "assistant", "content": None}])
    assert (body.text_bytes, body.messages, body.prompt_token_ids) == (9, 3, None)


def test_tools_are_part_of_the_prompt() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat(messages=HELLO, tools=tools).text_bytes == 5 + len(orjson.dumps(tools))


def test_the_newer_name_of_the_output_limit_takes_precedence() -> None:
    assert chat(messages=HELLO, max_tokens=5, max_completion_tokens=9).max_tokens == 9
    assert chat(messages=HELLO, max_tokens=5).max_tokens == 5
    assert chat(messages=HELLO).max_tokens is None


def test_the_engine_gets_the_clients_bytes_with_the_fields_appended() -> None:
    raw = b'{ "prompt" : [1,2], "seed": 123456789012345678901234567890, "temperature": 1e0 } \n'
    sent = read_body(COMPLETIONS, raw).with_fields({"penstock_id": "a", "penstock_spent_s": 0.5})
    assert sent.startswith(raw.rstrip()[:-1])
    assert orjson.loads(sent)["vllm_xargs"] == {"penstock_id": "a", "penstock_spent_s": 0.5}


def test_the_clients_own_extra_arguments_are_kept() -> None:
    own = {"simulated_output_tokens": 7, "penstock_id": "forged"}
    sent = completion(prompt="a", vllm_xargs=own, logit_bias={"5": 1}).with_fields({"penstock_id": "ours"})
    assert orjson.loads(sent) == {
        "model": "m",
        "prompt": "a",
        "vllm_xargs": {"simulated_output_tokens": 7, "penstock_id": "ours"},
        "logit_bias": {"5": 1},
    }


def test_a_client_cannot_set_its_own_slo_fields() -> None:
    own = {"penstock_ttft_s": 0.001, "penstock_value": 1e9}
    sent = orjson.loads(completion(prompt="a", vllm_xargs=own).with_fields({"penstock_id": "a"}))
    assert sent["vllm_xargs"] == {"penstock_id": "a"}


def test_empty_extra_arguments_are_filled() -> None:
    owns: list[dict[str, int] | None] = [{}, None]
    for own in owns:
        sent = orjson.loads(completion(prompt="a", vllm_xargs=own).with_fields({"penstock_id": "a"}))
        assert sent["vllm_xargs"] == {"penstock_id": "a"}


def test_a_prompt_exceeds_the_context_only_if_that_is_certain() -> None:
    full = completion(prompt=[1] * 100)
    check_context(full, 101)
    with pytest.raises(ApiError) as refused:
        check_context(full, 100)
    assert (refused.value.status, refused.value.param) == (400, "prompt")
    check_context(full, 0)
    check_context(completion(prompt="a" * 10000), 100)


@pytest.mark.parametrize(
    ("fields", "sequences"),
    [
        ({"prompt": "a"}, 1),
        ({"prompt": [1, 2]}, 1),
        ({"prompt": "a", "n": 32}, 32),
        ({"prompt": "a", "n": 2, "best_of": 5}, 5),
        ({"prompt": ["a", "b"], "n": 3}, 6),
        ({"prompt": [[1], [2, 3], [4]]}, 3),
    ],
)
def test_every_answer_that_the_engine_generates_is_counted(fields: dict[str, Any], sequences: int) -> None:
    assert completion(**fields).sequences == sequences


def test_unknown_fields_may_have_any_value_of_limited_depth() -> None:
    deepest = b'{"prompt": "a", "other": ' + b"[" * 99 + b"1e999]" + b"]" * 98 + b"}"
    sent = read_body(COMPLETIONS, deepest).with_fields({"penstock_id": "a"})
    assert sent.startswith(deepest[:-1])


def test_deep_extra_arguments_are_forwarded_unchanged() -> None:
    """They used to be written anew, which no library does to any depth."""
    own = b'{"simulated_output_tokens": ' + b"[" * 90 + b"]" * 90 + b"}"
    sent = read_body(COMPLETIONS, b'{"prompt": "a", "vllm_xargs": ' + own + b"}").with_fields(
        {"penstock_id": "a"}
    )
    assert b"[" * 90 in sent and orjson.loads(sent)["vllm_xargs"]["penstock_id"] == "a"


def test_a_text_part_that_is_not_unicode_is_named() -> None:
    with pytest.raises(ApiError) as refused:
        read_body(CHAT, b'{"messages": [{"content": [{"text": "\xff"}]}]}')
    assert refused.value.param == "messages[0].content"


@pytest.mark.parametrize("prompt", [[0], [[0]], ["a"], "a", ""])
def test_the_least_prompt_is_one(prompt: Any) -> None:
    body = completion(prompt=prompt, max_tokens=1, n=1, best_of=1)
    assert (body.prompts, body.sequences, body.max_tokens, body.messages) == (1, 1, 1, 0)


@pytest.mark.parametrize("prompt", [[1, 2, 3], [[1], [2, 3]]])
def test_a_prompt_of_token_ids_has_no_text(prompt: Any) -> None:
    assert completion(prompt=prompt).text_bytes == 0


@pytest.mark.parametrize(
    ("content", "size"),
    [(None, 0), ("", 0), ("schön", 6), ([], 0), ([{"text": "schön"}, {"text": 5}, {"text": None}], 6)],
)
@pytest.mark.parametrize("tools", [{}, {"tools": None}])
def test_only_texts_of_messages_are_measured(content: Any, size: int, tools: dict[str, Any]) -> None:
    assert chat(messages=[{"role": "user", "content": content}], **tools).text_bytes == size


def test_extra_arguments_may_have_their_longest_length() -> None:
    def body(length: int) -> ClientBody:
        padding = length - len('{"a":""}')
        return read_body(COMPLETIONS, b'{"prompt": "a", "vllm_xargs": {"a":"' + b"x" * padding + b'"}}')

    assert len(bytes(body(XARGS_BYTES).xargs["a"])) == XARGS_BYTES - len('{"a":}')
    with pytest.raises(ApiError, match=f"has {XARGS_BYTES + 1} bytes; at most {XARGS_BYTES} are allowed"):
        body(XARGS_BYTES + 1)


@pytest.mark.parametrize(
    ("raw", "output"),
    [
        (b"[1]", "the body must be a JSON object: "),
        (b"{", "the body is not JSON: "),
        (b'{"prompt": "a", "n": 0}', "'n' is invalid: "),
    ],
)
def test_an_invalid_body_is_refused_with_its_reason(raw: bytes, output: str) -> None:
    with pytest.raises(ApiError) as refused:
        read_body(COMPLETIONS, raw)
    assert refused.value.message.startswith(output)
    assert " at `$" not in refused.value.message
    assert refused.value.code == "invalid_value"


@pytest.mark.parametrize(
    ("options", "asking"),
    [
        (None, {"include_usage": True}),
        ({}, {"include_usage": True}),
        ({"include_usage": False, "x": 1}, {"include_usage": True, "x": 1}),
        ({"include_usage": None, "x": [1]}, {"include_usage": True, "x": [1]}),
        ({"include_usage": True}, None),
        ({"include_usage": "wrong"}, None),
        ([], None),
        (7, None),
    ],
)
def test_usage_of_a_stream_is_requested_unless_its_client_does_or_is_invalid(
    options: Any, asking: dict[str, Any] | None
) -> None:
    fields = {"model": "m", "prompt": "a", "stream": True, "seed": 1, "stream_options": options}
    sent = read_body(COMPLETIONS, orjson.dumps(fields)).requesting_usage()
    assert (sent and orjson.loads(sent)) == (asking and {**fields, "stream_options": asking})


def test_a_stream_without_options_gets_them_appended() -> None:
    raw = b'{"prompt": "a",  "stream": true} \n'
    sent = read_body(COMPLETIONS, raw).requesting_usage()
    assert sent == b'{"prompt": "a",  "stream": true,"stream_options":{"include_usage":true}}'


@pytest.mark.parametrize("stream", [{}, {"stream": False}, {"stream": None}])
def test_an_answer_that_is_not_streamed_has_its_usage_by_default(stream: dict[str, Any]) -> None:
    assert completion(prompt="a", **stream).requesting_usage() is None
    assert (
        completion(prompt="a", stream_options={"include_usage": False}, **stream).requesting_usage() is None
    )


def test_a_body_too_long_to_be_rewritten_is_forwarded_unchanged() -> None:
    options = b'{"prompt": "a", "stream": true, "stream_options": {"x": 1}, "other": "'
    padding = REWRITTEN_BYTES - len(options + b'"}')
    assert read_body(COMPLETIONS, options + b"x" * padding + b'"}').requesting_usage() is not None
    assert read_body(COMPLETIONS, options + b"x" * (padding + 1) + b'"}').requesting_usage() is None
