"""The router's partial reading of a body, compared with a full parser."""

import asyncio
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_pool.requests_spec import Requests
from penstock_proto import replica_pb2 as wire
from penstock_routing.request.request_body import INLINE_BYTES, BodyFields, BodyReader
from penstock_runtime.openai_errors import ApiError

READER = BodyReader(4, Requests())

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)
PROMPTS = st.text(max_size=5) | st.lists(st.integers(0, 9), max_size=9) | st.lists(st.text(), max_size=6)
LONGEST = ("max_completion_tokens", "max_tokens")
NAMES = st.sampled_from(
    ["model", "stream", "service_tier", "n", "best_of", "prompt", "messages", "other", *LONGEST]
)
BODIES = st.dictionaries(NAMES, VALUES | PROMPTS | st.integers(0, 6), max_size=6)


def asked(body: dict[str, Any]) -> BodyFields | None:
    """Return the fields as a full parser reads them; None if a field is invalid."""
    model, stream, tier = body.get("model"), body.get("stream"), body.get("service_tier")
    counts = [body.get(name) for name in ("n", "best_of")]
    typed = isinstance(model, str) and isinstance(stream, bool | None) and isinstance(tier, str | None)
    if not typed or any(count is not None and (type(count) is not int or count < 1) for count in counts):
        return None
    prompt = body.get("prompt")
    is_list = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    sequences = (len(prompt) if is_list and prompt else 1) * max(count or 1 for count in counts)
    longest = next((body[name] for name in LONGEST if body.get(name) is not None), None)
    max_tokens = longest if type(longest) is int else None
    return BodyFields(str(model), bool(stream), tier, sequences, max_tokens) if sequences <= 4 else None


@given(BODIES)
def test_fields_are_read_as_a_whole_parse_reads_them(body: dict[str, Any]) -> None:
    raw = orjson.dumps(body, option=orjson.OPT_INDENT_2, default=str)
    try:
        read: BodyFields | None = READER.parse(wire.ENDPOINT_COMPLETIONS, raw)
    except ApiError as error:
        assert error.status == 400
        assert error.param in body or error.param == "model"
        read = None
    assert read == asked(orjson.loads(raw))


@given(st.binary(max_size=200) | st.text('{}[]",:model n1', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    try:
        READER.parse(wire.ENDPOINT_CHAT_COMPLETIONS, raw)
    except ApiError as error:
        assert error.status == 400


def test_a_chat_always_has_one_prompt() -> None:
    raw = b'{"model": "m", "n": 2, "best_of": 9, "prompt": ["a", "b", "c", "d", "e"]}'
    assert READER.parse(wire.ENDPOINT_CHAT_COMPLETIONS, raw).sequences == 2


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    assert READER.parse(wire.ENDPOINT_CHAT_COMPLETIONS, b'{"model":"a","model":"b"}').model == "b"


CHAT, COMPLETIONS = wire.ENDPOINT_CHAT_COMPLETIONS, wire.ENDPOINT_COMPLETIONS
COUNT = "must be a whole number, 1 or more"
OVER = "is over the bound of 4 sequences for one request"


@pytest.mark.parametrize(
    ("body", "param", "code", "message"),
    [
        ("{}", "model", "missing_required_parameter", "'model' is missing"),
        ('{"model": null}', "model", "missing_required_parameter", "'model' is missing"),
        ('{"model": 5}', "model", "invalid_type", "'model' must be text, not a number"),
        ('{"model": [5]}', "model", "invalid_type", "'model' must be text, not a list"),
        ('{"model": {}}', "model", "invalid_type", "'model' must be text, not an object"),
        ('{"model": true}', "model", "invalid_type", "'model' must be text, not true"),
        ('{"model": false}', "model", "invalid_type", "'model' must be text, not false"),
        (
            '{"model": "m", "stream": "x"}',
            "stream",
            "invalid_type",
            "'stream' must be true or false, not text",
        ),
        ('{"model": "m", "service_tier": 1}', "service_tier", "invalid_type", "must be text, not a number"),
        ('{"model": "m", "n": 0}', "n", "invalid_value", f"'n' {COUNT}"),
        ('{"model": "m", "n": 1.5}', "n", "invalid_value", f"'n' {COUNT}"),
        ('{"model": "m", "n": 5}', "n", "invalid_value", f"'n' {OVER}"),
        ('{"model": "m", "best_of": -1}', "best_of", "invalid_value", f"'best_of' {COUNT}"),
        ('{"model": "m", "best_of": 5}', "best_of", "invalid_value", f"'best_of' {OVER}"),
        (
            '{"model": "m", "prompt": ["a", "b", "c", "d", "e"]}',
            "prompt",
            "invalid_value",
            f"this list of prompts {OVER}",
        ),
        (
            '{"model": "m", "prompt": ["a", "b"], "n": 3}',
            "n",
            "invalid_value",
            f"2 prompts with 3 answers each {OVER}",
        ),
        (" [1]", None, "invalid_json", "the body must be a JSON object, not a list"),
        ('"x"', None, "invalid_json", "the body must be a JSON object, not text"),
        ("null", None, "invalid_json", "the body must be a JSON object, not null"),
        ("7", None, "invalid_json", "the body must be a JSON object, not a number"),
        ("{", None, "invalid_json", "the body is not JSON: "),
        ('{"model": "m", "x": ' + "[" * 200 + "]" * 200 + "}", None, "too_complex", "the body is nested "),
        ('{"model": "m", "x": ' + "[" * 9000 + "]" * 9000 + "}", None, "too_complex", "the body is nested "),
    ],
    ids=lambda given: str(given)[:60],
)
def test_an_invalid_body_is_refused_with_the_field_and_a_message(
    body: str, param: str | None, code: str, message: str
) -> None:
    with pytest.raises(ApiError) as refused:
        READER.parse(COMPLETIONS, body.encode())
    error = refused.value
    assert (error.status, error.param, error.code) == (400, param, code)
    assert message in error.message


@pytest.mark.parametrize("name", ["model", "service_tier"])
def test_an_error_names_the_text_that_is_not_unicode(name: str) -> None:
    with pytest.raises(ApiError, match=f"'{name}' must be text"):
        READER.parse(COMPLETIONS, b'{"model": "m", "' + name.encode() + b'": "\xff"}')


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ('{"model": "m"}', BodyFields("m", False, None, 1, None)),
        ('{"model": "", "stream": null, "n": null}', BodyFields("", False, None, 1, None)),
        ('{"model": "m", "stream": true, "n": 4}', BodyFields("m", True, None, 4, None)),
        ('{"model": "m", "service_tier": "x", "best_of": 4}', BodyFields("m", False, "x", 4, None)),
        ('{"model": "m", "prompt": ["a", "b"], "n": 2}', BodyFields("m", False, None, 4, None)),
        ('{"model": "m", "prompt": ["a", "b", "c", "d"]}', BodyFields("m", False, None, 4, None)),
        ('{"model": "m", "prompt": [[1], [2]]}', BodyFields("m", False, None, 2, None)),
        ('{"model": "m", "prompt": [1, 2, 3, 4, 5]}', BodyFields("m", False, None, 1, None)),
        ('{"model": "m", "max_tokens": 7}', BodyFields("m", False, None, 1, 7)),
        ('{"model": "m", "max_tokens": 7, "max_completion_tokens": 9}', BodyFields("m", False, None, 1, 9)),
        (
            '{"model": "m", "max_tokens": 7, "max_completion_tokens": null}',
            BodyFields("m", False, None, 1, 7),
        ),
        (
            '{"model": "m", "max_tokens": 7, "max_completion_tokens": "x"}',
            BodyFields("m", False, None, 1, None),
        ),
    ],
    ids=lambda given: str(given)[:60],
)
def test_fields_of_a_body_are_read(body: str, read: BodyFields) -> None:
    assert READER.parse(COMPLETIONS, body.encode()) == read


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ('"run-7"', b"run-7"),
        ('"\\u00e4 "', "ä".encode()),
        (f'"{"x" * 600}"', b"x" * 512),
        ('""', None),
        ("null", None),
        ("7", None),
        ('["a"]', None),
    ],
    ids=["text", "escaped", "long", "empty", *"n7l"],
)
def test_a_cache_key_is_the_session_that_a_header_with_its_text_is(given: str, key: bytes | None) -> None:
    raw = f'{{"model": "m", "messages": [], "prompt_cache_key": {given}}}'.encode()
    assert READER.parse(CHAT, raw).prompt_cache_key == key


def test_only_chats_are_searched_for_media() -> None:
    raw = b'{"model": "m", "messages": [{"content": [{"image_url": "https://x.org"}]}]}'
    with pytest.raises(ApiError, match="may not fetch"):
        READER.parse(CHAT, raw)
    assert READER.parse(COMPLETIONS, raw).model == "m"


@pytest.mark.parametrize(("size", "beside"), [(INLINE_BYTES, 0), (INLINE_BYTES + 1, 1)])
async def test_a_long_body_is_parsed_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, size: int, beside: int
) -> None:
    in_threads, to_thread = list[bytes](), asyncio.to_thread

    async def counted(work: Callable[..., BodyFields], endpoint: Any, raw: bytes) -> BodyFields:
        in_threads.append(raw)
        return await to_thread(work, endpoint, raw)

    monkeypatch.setattr(asyncio, "to_thread", counted)
    body = b'{"model": "m", "n": 2}'
    read = await READER.read(COMPLETIONS, body + b" " * (size - len(body)))
    assert (read.sequences, len(in_threads)) == (2, beside)
