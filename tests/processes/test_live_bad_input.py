"""Every invalid request gets a 4xx in OpenAI's JSON that names the error: no 5xx, no hang, no traceback."""

import json
import socket
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from live import raw_http
from live.pool import LivePool
from live.raw_http import chat, exchange, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MOST_BODY_BYTES, MOST_HEADER_BYTES = 200_000, 8192
KIND = "application/json"


@pytest.fixture(scope="module")
def bounded(shared_pool: LivePool) -> LivePool:
    """The shared pool, and a router of small bounds to it."""
    shared_pool.restore()
    bounds = {"maxBodyBytes": MOST_BODY_BYTES, "maxHeaderBytes": MOST_HEADER_BYTES, "bodyTimeout": "1s"}
    shared_pool.start_router("bounded", router=bounds)
    return shared_pool


@pytest.fixture
def router(bounded: LivePool) -> tuple[str, int]:
    return bounded.address("router", "bounded")


def refused(answer: raw_http.Answer, status: int) -> dict[str, Any]:
    """The error, after checking what every refusal has in common."""
    assert answer.status == status, answer
    assert answer.headers["content-type"] == KIND
    error = answer.error
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert b"Traceback" not in answer.body
    assert b".py" not in answer.body
    return error


NOT_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b'"text"',
    b"17",
    b"true",
    b"NaN",
    b"\xff\xfe{}",
    b"\x00",
    b"[" * 50_000,
    b'{"a":' * 20_000,
    b'{"model": "llama3-8b", "messages": [}',
    b'{"model": "llama3-8b"} trailing',
    b"--boundary\r\ncontent-disposition: form-data",
    b"model=llama3-8b&prompt=hello",
]


@pytest.mark.parametrize("body", NOT_JSON, ids=lambda body: repr(body[:16]))
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_not_a_json_object_is_answered_400(
    router: tuple[str, int], path: str, body: bytes
) -> None:
    refused(exchange(router, post(path, body)), 400)


WRONG_FIELDS: list[tuple[str, Any, str]] = [
    ("messages", None, "messages"),
    ("messages", [], "messages"),
    ("messages", "hello", "messages"),
    ("messages", ["hello"], "messages[0]"),
    ("messages", [{"role": "user", "content": 7}], "messages[0].content"),
    ("messages", [{"role": "user", "content": "a"}, {"role": "user", "content": [3]}], "messages[1].content"),
    ("max_tokens", "many", "max_tokens"),
    ("max_tokens", 0, "max_tokens"),
    ("max_tokens", -1, "max_tokens"),
    ("max_tokens", 1.5, "max_tokens"),
    ("max_tokens", True, "max_tokens"),
    ("max_tokens", 10**30, "max_tokens"),
    ("max_completion_tokens", [], "max_completion_tokens"),
    ("stream", "yes", "stream"),
    ("stream", 1, "stream"),
    ("n", 0, "n"),
    ("n", "two", "n"),
    ("n", 1_000_000, "n"),
    ("temperature", "hot", "temperature"),
    ("temperature", -1, "temperature"),
    ("service_tier", 5, "service_tier"),
    ("model", 3, "model"),
    ("model", None, "model"),
    ("stream_options", "all", "stream_options"),
    ("vllm_xargs", 3, "vllm_xargs"),
]


@pytest.mark.parametrize(("field", "value", "param"), WRONG_FIELDS)
def test_an_invalid_field_is_named(bounded: LivePool, field: str, value: Any, param: str) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.BadRequestError) as refusal:
        client.post("/chat/completions", cast_to=object, body={**json.loads(chat()), field: value})
    assert refusal.value.param == param
    assert refusal.value.type == "invalid_request_error"


@pytest.mark.parametrize("value", [None, 7, "", [], [1, -1], [1, "a"], [1.5], {"text": "a"}, [[]], [True]])
def test_an_invalid_prompt_is_named(bounded: LivePool, value: Any) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.BadRequestError) as refusal:
        client.post("/completions", cast_to=object, body={"model": bounded.model, "prompt": value})
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize("prompt", [["hello"] * 100, [[1, 2, 3]] * 100], ids=["texts", "ids"])
def test_too_many_prompts_are_named(bounded: LivePool, prompt: Any) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.BadRequestError) as refusal:
        client.post("/completions", cast_to=object, body={"model": bounded.model, "prompt": prompt})
    assert refusal.value.param == "prompt"


@pytest.mark.parametrize("levels", [90, 150, 254, 300, 990, 1_100, 10_000])
@pytest.mark.parametrize("field", ["tools", "metadata", "vllm_xargs", "unknown"])
def test_every_depth_of_nesting_is_answered(router: tuple[str, int], field: str, levels: int) -> None:
    body = chat()[:-1] + f', "{field}": '.encode() + b'{"a":[' * (levels // 2) + b"]}" * (levels // 2) + b"}"
    answer = exchange(router, post(CHAT, body))
    if levels > 100:
        assert "nested deeper than 100 levels" in refused(answer, 400)["message"]
    else:
        assert answer.status in (200, 400)


def test_an_unknown_model_is_404(bounded: LivePool) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.NotFoundError, match="gpt-9") as refusal:
        client.chat.completions.create(model="gpt-9", messages=[{"role": "user", "content": "hello"}])
    assert refusal.value.code == "model_not_found"


@pytest.mark.parametrize("prompt", [[5] * 9000, "word " * 20_000], ids=["ids", "text"])
def test_a_prompt_over_the_context_is_named(bounded: LivePool, prompt: str | list[int]) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=bounded.model, prompt=prompt, max_tokens=5)
    assert refusal.value.param == "prompt"
    assert refusal.value.code == "context_length_exceeded"


def test_an_answer_over_the_context_is_named(bounded: LivePool) -> None:
    with bounded.client("bounded") as client, pytest.raises(openai.BadRequestError) as refusal:
        client.completions.create(model=bounded.model, prompt="hello", max_tokens=10**6)
    assert refusal.value.param == "max_tokens"


def test_a_body_too_large_is_413(router: tuple[str, int]) -> None:
    error = refused(exchange(router, post(CHAT, chat(user="x" * MOST_BODY_BYTES))), 413)
    assert str(MOST_BODY_BYTES) in error["message"]


def test_a_chunked_body_too_large_is_413(router: tuple[str, int]) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nhost: pool\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    chunk = b"4000\r\n" + b"x" * 0x4000 + b"\r\n"
    refused(exchange(router, head + chunk * 20 + b"0\r\n\r\n"), 413)


def test_headers_that_are_too_large_are_431(router: tuple[str, int]) -> None:
    refused(exchange(router, post(CHAT, chat(), "x-long: " + "y" * MOST_HEADER_BYTES)), 431)


def test_an_endless_header_is_431(router: tuple[str, int]) -> None:
    refused(exchange(router, b"GET / HTTP/1.1\r\nhost: pool\r\nx-long: " + b"y" * 100_000), 431)


def test_too_many_headers_are_431(router: tuple[str, int]) -> None:
    refused(exchange(router, post(CHAT, chat(), *(f"x-{n}: y" for n in range(2000)))), 431)


HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: pool\r\n"


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"POST /v1/chat/completions HTTP/9.9\r\n\r\n",
        HEAD + b"content-length: -5\r\n\r\n",
        HEAD + b"content-length: 5, 6\r\n\r\n",
        HEAD + b"content-length: 3\r\ntransfer-encoding: chunked\r\n\r\n",
        HEAD + b"no colon\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\nzz\r\nabc\r\n",
        b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    ],
    ids=lambda request: repr(request[-24:]),
)
def test_bytes_that_are_not_http_are_answered_400_or_closed(
    router: tuple[str, int], request_bytes: bytes
) -> None:
    answer = exchange(router, request_bytes, half_close=True)
    assert answer.status in (0, 400, 404), answer
    if answer.status == 400:
        refused(answer, 400)


@pytest.mark.parametrize(
    "path", ["/", "/v1", "/v1/chat", "/v1/embeddings", "/../etc/passwd", "/v1/models/a/b"]
)
def test_an_unknown_path_is_404(router: tuple[str, int], path: str) -> None:
    refused(exchange(router, f"GET {path} HTTP/1.1\r\nhost: pool\r\n\r\n".encode()), 404)


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH"])
def test_another_method_is_405(router: tuple[str, int], method: str) -> None:
    answer = exchange(router, f"{method} {CHAT} HTTP/1.1\r\nhost: pool\r\ncontent-length: 0\r\n\r\n".encode())
    refused(answer, 405)
    assert "POST" in answer.headers["allow"]


def test_a_compressed_body_is_415(router: tuple[str, int]) -> None:
    error = refused(exchange(router, post(CHAT, b"\x1f\x8b\x08", "content-encoding: gzip")), 415)
    assert error["param"] == "content-encoding"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "\xff"])
def test_the_content_type_is_ignored(router: tuple[str, int], kind: str) -> None:
    body = chat()
    head = HEAD + f"content-length: {len(body)}\r\ncontent-type: {kind}\r\n\r\n".encode("latin-1")
    assert exchange(router, head + body).status == 200


@pytest.mark.parametrize("given_id", ["", "x" * 500, "with space", "caf\xe9", "a\tb"])
def test_an_invalid_request_id_is_replaced(router: tuple[str, int], given_id: str) -> None:
    body = chat()
    head = HEAD + f"content-length: {len(body)}\r\nx-request-id: {given_id}\r\n\r\n".encode("latin-1")
    answer = exchange(router, head + body)
    assert answer.status == 200
    assert answer.headers["x-request-id"].isalnum()


def test_a_body_that_never_arrives_is_408(router: tuple[str, int]) -> None:
    refused(exchange(router, post(CHAT, chat())[:-5]), 408)


def test_a_half_closed_client_is_answered_or_closed(router: tuple[str, int]) -> None:
    assert exchange(router, post(CHAT, chat()), half_close=True).status in (0, 200)


def test_a_client_that_disconnects_within_its_body_affects_no_other(router: tuple[str, int]) -> None:
    for _ in range(5):
        with socket.create_connection(router) as sock:
            sock.sendall(post(CHAT, chat())[:-10])
    assert exchange(router, post(CHAT, chat())).status == 200


def test_a_connection_is_reused_after_a_refusal(router: tuple[str, int]) -> None:
    """A 400 ends the exchange, not the connection."""
    with socket.create_connection(router, timeout=raw_http.PATIENCE_S) as sock:
        for _ in range(3):
            sock.sendall(post(CHAT, b"{}"))
            answer = raw_http.read_answer(sock)
            refused(answer, 400)
            assert answer.headers.get("connection") != "close"


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(["auto", "none", "json_object", "chat", "batch", "user", "é\U0001f600", "\x00"])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["role", "content", "type", "text"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
FIELDS = st.sampled_from(
    [
        *("model", "messages", "prompt", "max_tokens", "max_completion_tokens", "stream", "stream_options"),
        *("n", "temperature", "top_p", "stop", "seed", "logit_bias", "logprobs", "tools", "tool_choice"),
        *("response_format", "service_tier", "user", "metadata", "ignore_eos", "min_tokens", "vllm_xargs"),
        *("presence_penalty", "frequency_penalty", "structured_outputs", "echo", "suffix", "best_of"),
    ]
)
ALLOWED = {200, 400, 404, 413, 422, 429}


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    path=st.sampled_from([CHAT, COMPLETIONS]),
    changes=st.dictionaries(FIELDS | st.text(max_size=8), VALUES, max_size=4),
)
def test_every_value_of_every_field_is_answered(
    bounded: LivePool, path: str, changes: dict[str, Any]
) -> None:
    good = {"model": bounded.model, "prompt": "hello", "messages": [{"role": "user", "content": "hello"}]}
    body = json.dumps({**good, "max_tokens": 2, **changes}).encode()
    with (
        httpx2.Client(base_url=bounded.url("bounded"), timeout=raw_http.PATIENCE_S) as client,
        client.stream("POST", path, content=body) as response,
    ):
        assert response.status_code in ALLOWED, response.read()
        if response.status_code != 200:
            output = response.read()
            assert json.loads(output)["error"]["message"]
            assert b"Traceback" not in output


def test_the_pool_still_serves_after_all_invalid_input(bounded: LivePool) -> None:
    with bounded.client("bounded") as client:
        answer = client.chat.completions.create(
            model=bounded.model, messages=[{"role": "user", "content": "still here?"}], max_tokens=3
        )
    assert answer.choices
    logs = "".join(text for _, text in bounded.logs())
    assert "Traceback" not in logs
