"""Fields that make engines act towards others: refused unless a pool allows them."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_pool.requests_spec import PROXY_FIELDS, Requests
from penstock_proto import replica_pb2 as wire
from penstock_routing.request.request_body import BodyReader
from penstock_runtime.openai_errors import ApiError
from scripted.replica import ScriptedReplica
from scripted.router import MODEL, pool_with, running_router

CHAT, COMPLETIONS = wire.ENDPOINT_CHAT_COMPLETIONS, wire.ENDPOINT_COMPLETIONS
HOSTS = ["images.example.com", "*.cdn.example"]


def refusal(raw: bytes, endpoint: Any = CHAT, **allowed: Any) -> ApiError | None:
    """How a pool that allows this answers; None where it passes the body on."""
    try:
        BodyReader(32, Requests.model_validate(allowed)).parse(endpoint, raw)
    except ApiError as error:
        assert error.status == 400
        return error
    return None


def chat(*parts: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}, {"role": "user", "content": list(parts)}]
    return orjson.dumps({"model": "m", "messages": messages})


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "auto"}}


@pytest.mark.parametrize("name", PROXY_FIELDS)
@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS])
def test_a_proxys_field_is_refused_by_name_unless_it_is_allowed(name: str, endpoint: Any) -> None:
    raw = orjson.dumps({"model": "m", "prompt": "x", "messages": [], name: 1})
    refused = refusal(raw, endpoint)
    assert refused is not None
    assert (refused.param, refused.code) == (name, "unsupported_parameter")
    assert refusal(raw, endpoint, allowFields=[name]) is None
    assert refusal(orjson.dumps({"model": "m", "prompt": "x", name: None}), endpoint) is None


def test_a_name_that_is_written_with_escapes_is_the_same_name() -> None:
    refused = refusal(b'{"model": "m", "\\u0070riority": 1}')
    assert refused is not None
    assert refused.param == "priority"


@pytest.mark.parametrize(
    "url",
    [
        "https://images.example.com/cat.png",
        "HTTP://Images.Example.COM:8080?x=1#y",
        "https://a.b.cdn.example/x",
        "https://images.example.com",
        "data:image/png;base64,iVBORw0KGgo=",
        "DATA:image/png;base64,iVBORw0KGgo=",
    ],
)
def test_media_of_allowed_hosts_and_in_the_body_are_passed_on(url: str) -> None:
    assert refusal(chat(image(url)), mediaHosts=HOSTS) is None


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/cat.png",
        "http://169.254.169.254/latest/meta-data",
        "http://[::1]/",
        "https://cdn.example/x",
        "https://evilcdn.example/x",
        "https://images.example.com.evil.org/",
        "https://images.example.com@evil.org/",
        "https://evil.org\\@images.example.com/",
        "https://images.example.com\\@evil.org/",
        "https://images.example.com:80@evil.org/",
        "https://evil.org#@images.example.com/",
        "https:/images.example.com",
        "https:images.example.com",
        "https:///images.example.com",
        "https://images.example.com/a b",
        "https://images.example.com\n",
        "https://images.example.com.",
        "ht\ntps://evil.org/",
        " \t\nhttps://evil.org/",
        "\x00https://evil.org/",
        "ftp://images.example.com/x",
        "file:///etc/passwd",
        "file:/etc/passwd",
        "FILE:/etc/passwd",
        "da\nta:x",
        "gopher://x",
    ],
)
def test_media_from_anywhere_else_are_refused(url: str) -> None:
    refused = refusal(chat({"type": "text", "text": "what is this?"}, image(url)), mediaHosts=HOSTS)
    assert refused is not None
    assert (refused.param, refused.code) == ("messages[1].content[1]", "media_not_allowed")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": "https://x.org"},
        {"image_url": {"url": "https://x.org"}},
        {"type": "video_url", "video_url": {"url": "https://x.org"}},
        {"type": "audio_url", "audio_url": {"url": "https://x.org"}},
        {"type": "file", "file": {"file_url": "https://x.org"}},
        {"type": "frames", "frames": ["https://x.org"]},
        {"type": "new", "deep": [{"er": [[{"still": "https://x.org"}]]}]},
        {"type": "text", "text": {"url": "https://x.org"}},
        [{"image_url": "https://x.org"}],
    ],
)
def test_parts_of_every_kind_are_checked(part: Any) -> None:
    assert refusal(chat(part)) is not None
    assert refusal(chat(part), mediaHosts=["*"]) is None


@pytest.mark.parametrize(
    "content",
    [
        "see https://x.org",
        "https://x.org",
        [{"type": "text", "text": "https://x.org"}],
        ["https://x.org"],
        [{"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}}],
        [{"type": "image_url", "image_url": {"url": "data:,x"}, "uuid": "sku:1"}],
        None,
        [],
        7,
        [7, None],
    ],
)
def test_urls_within_texts_are_allowed(content: Any) -> None:
    assert refusal(orjson.dumps({"model": "m", "messages": [{"role": "user", "content": content}]})) is None


def test_escapes_and_repeated_names_do_not_bypass_the_check() -> None:
    parts = b'[{"type": "image_url", "image_url": {"url": "https:\\/\\/x.org"}}]'
    for content in (b"content", b"\\u0063ontent"):
        assert refusal(b'{"model": "m", "messages": [{"' + content + b'": ' + parts + b"}]}") is not None
        twice = b'"content": "x", "' + content + b'": ' + parts
        assert refusal(b'{"model": "m", "messages": [], "messages": [{' + twice + b"}]}") is not None


def test_a_message_that_is_not_valid_unicode_is_refused() -> None:
    refused = refusal(b'{"model": "m", "messages": [{"content": [{"image_url": "\xff"}]}]}')
    assert refused is not None
    assert refused.param == "messages"


@pytest.mark.parametrize("messages", ["7", '"x"', "{}", "[7]", "null", '[{"content": 7}, [], "x"]'])
def test_malformed_messages_are_left_to_the_replica_to_refuse(messages: str) -> None:
    assert refusal(f'{{"model": "m", "messages": {messages}}}'.encode()) is None


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 9)
    | st.sampled_from(["https://x.org", "file:x", "data:,", "a"]),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["type", "text", "image_url", "url", "x"]), inner, max_size=3)
    ),
    max_leaves=10,
)


def places(value: Any) -> bool:
    """Return whether it has a forbidden URL."""
    if isinstance(value, dict):
        texts = {"type", "text"}
        return any(places(each) for name, each in value.items() if not (name in texts and type(each) is str))
    if isinstance(value, list):
        return any(map(places, value))
    return value in ("https://x.org", "file:x")


@given(st.lists(VALUES, max_size=4))
def test_every_url_field_is_checked_and_no_text_is(parts: list[Any]) -> None:
    media = any(places(part) for part in parts if not isinstance(part, str))
    assert (refusal(chat(*parts)) is not None) == media


async def test_no_replica_receives_a_forbidden_field() -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, pool=pool_with(requests={"allowFields": ["rid"]})) as router:
        refused = await router.chat(priority=-5)
        allowed = await router.chat(rid="x")
        media = [{"role": "user", "content": [image("http://10.0.0.1/")]}]
        body = {"model": MODEL, "messages": media}
        remote = await router.http.post("/v1/chat/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "priority")
    assert (allowed.status_code, remote.status_code) == (200, 400)
    assert len(replica.parts) == 1
