"""What the router reads of a body, beside a parser that reads all of it."""

from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st
from penstock_pool.requests_spec import Requests
from penstock_proto import replica_pb2 as wire
from penstock_router.request.request_body import BodyFields, BodyReader
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
    """What a whole parse of the body says; None where a field is wrong."""
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


def test_a_chat_has_one_prompt_whatever_its_fields_say() -> None:
    raw = b'{"model": "m", "n": 2, "best_of": 9, "prompt": ["a", "b", "c", "d", "e"]}'
    assert READER.parse(wire.ENDPOINT_CHAT_COMPLETIONS, raw).sequences == 2


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    assert READER.parse(wire.ENDPOINT_CHAT_COMPLETIONS, b'{"model":"a","model":"b"}').model == "b"
