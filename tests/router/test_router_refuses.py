"""Requests that are answered with an error before any replica receives them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest
from openai import AuthenticationError, PermissionDeniedError
from openai.types.chat import ChatCompletionUserMessageParam
from penstock_pool import load_keys
from penstock_runtime.http_connection.bounds import HttpBounds
from scripted.replica import ScriptedReplica
from scripted.router import MODEL, RunningRouter, pool_with, running_router

HI: list[ChatCompletionUserMessageParam] = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def body(**fields: Any) -> bytes:
    return orjson.dumps({"model": MODEL, "messages": HI, **fields})


def assert_error(reply: httpx2.Response, status: int, param: str | None, words: str) -> None:
    assert reply.status_code == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"]
    error = reply.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert words in error["message"]


@pytest.mark.parametrize(
    ("raw", "status", "param", "words"),
    [
        (b"", 400, None, "not JSON"),
        (b"{", 400, None, "not JSON"),
        (b"[1]", 400, None, "must be a JSON object, not a list"),
        (b"null", 400, None, "not null"),
        (b'"text"', 400, None, "not text"),
        (b'{"model": "m", "temperature": NaN}', 400, None, "not JSON"),
        (b"\xff\xfe", 400, None, "not JSON"),
        (b"[" * 100_000, 400, None, "must be a JSON object, not a list"),
        (b'{"model": ' + b"[" * 50_000, 400, None, "nested deeper than 100 levels"),
        (body(tools=[])[:-2] + b"[" * 99 + b"]" * 100 + b"}", 400, None, "nested deeper than 100 levels"),
        (body(x="y" * 300_000)[:-1], 400, None, "not JSON"),
        (body(tools=None)[:-5] + b'{"a": ' * 20_000, 400, None, "nested deeper than 100 levels"),
        (b"{}", 400, "model", "'model' is missing"),
        (body(model=None), 400, "model", "'model' is missing"),
        (body(model=5), 400, "model", "'model' must be text, not a number"),
        (body(model="other"), 404, "model", "the model 'other' does not exist"),
        (body(stream="yes"), 400, "stream", "'stream' must be true or false, not text"),
        (body(stream=1), 400, "stream", "not a number"),
        (body(service_tier=["auto"]), 400, "service_tier", "not a list"),
        (b'{"model": "\xff"}', 400, "model", "must be text"),
        (body(n=0), 400, "n", "a whole number, 1 or more"),
        (body(n=1.0), 400, "n", "a whole number, 1 or more"),
        (body(n="2"), 400, "n", "a whole number, 1 or more"),
        (body(n=[]), 400, "n", "a whole number, 1 or more"),
        (body(n=-1), 400, "n", "a whole number, 1 or more"),
        (body(n=33), 400, "n", "over the bound of 32 sequences"),
        (body(n=1_000_000), 400, "n", "over the bound of 32 sequences"),
        (body()[:-1] + b',"n":' + b"9" * 1000 + b"}", 400, "n", "'n'"),
        (body(x="y" * 3000), 413, None, "bound of 2000"),
    ],
)
async def test_an_invalid_body_is_refused_before_any_replica_is_tried(
    raw: bytes, status: int, param: str | None, words: str
) -> None:
    replica = ScriptedReplica("r0")
    pool = pool_with(router={"maxBodyBytes": 500_000 if len(raw) > 50_000 else 2000})
    async with running_router(replica, pool=pool) as router:
        assert_error(await router.http.post(CHAT, content=raw), status, param, words)
    assert replica.parts == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": [[1, 2]] * 5}, "prompt"),
        ({"prompt": "a", "n": 5}, "n"),
        ({"prompt": "a", "best_of": 5}, "best_of"),
        ({"prompt": "a", "best_of": True}, "best_of"),
        ({"prompt": ["a", "b"], "n": 3}, "n"),
        ({"prompt": ["a", "b", "c"], "best_of": 2}, "n"),
    ],
)
async def test_a_completion_of_too_many_sequences_names_the_field(fields: dict[str, Any], param: str) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, pool=pool_with(router={"maxSequencesPerRequest": 4})) as router:
        assert_error(await router.http.post("/v1/completions", content=body(**fields)), 400, param, "")
    assert replica.parts == []


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": ["a", "b", "c", "d"]},
        {"prompt": [[1, 2], [3]], "n": 2},
        {"prompt": list(range(100))},
        {"prompt": "a", "n": 4, "best_of": 4},
        {"prompt": "a", "n": None, "best_of": None},
        {"prompt": {"not": "ours to judge"}},
    ],
)
async def test_a_completion_of_as_many_sequences_as_allowed_goes_to_a_replica(fields: dict[str, Any]) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, pool=pool_with(router={"maxSequencesPerRequest": 4})) as router:
        assert (await router.http.post("/v1/completions", content=body(**fields))).status_code == 200
    assert len(replica.parts) == 1


@pytest.mark.parametrize(
    ("headers", "status", "param"),
    [
        ({"x-penstock-tier": "gold"}, 400, "x-penstock-tier"),
        ({"x-penstock-tier": ""}, 400, "x-penstock-tier"),
        ({"x-penstock-tier": "coder", "x-slo-ttft-ms": "nan"}, 400, "x-slo-ttft-ms"),
        ({"x-penstock-tier": "coder", "x-slo-ttft-ms": "0"}, 400, "x-slo-ttft-ms"),
        ({"x-penstock-tier": "coder", "x-slo-tpot-ms": "-5"}, 400, "x-slo-tpot-ms"),
        ({"x-penstock-tier": "coder", "x-slo-tpot-ms": "inf"}, 400, "x-slo-tpot-ms"),
        ({"x-penstock-tier": "coder", "x-llm-d-slo-ttft-ms": "50ms"}, 400, "x-llm-d-slo-ttft-ms"),
        ({"x-penstock-tier": "coder", "x-llm-d-slo-tpot-ms": ""}, 400, "x-llm-d-slo-tpot-ms"),
        ({"x-slo-ttft-ms": "100"}, 400, "x-slo-ttft-ms"),
        ({"content-encoding": "gzip"}, 415, "content-encoding"),
    ],
)
async def test_an_invalid_header_is_refused_by_name(headers: dict[str, str], status: int, param: str) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica) as router:
        assert_error(await router.http.post(CHAT, content=body(), headers=headers), status, param, param)
    assert replica.parts == []


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("GET", "/nowhere", 404, None),
        ("POST", "/v1/embeddings", 404, None),
        ("GET", "/v1/models/other/model", 404, None),
        ("GET", CHAT, 405, "POST"),
        ("POST", "/v1/models", 405, "GET, HEAD"),
        ("DELETE", "/health", 405, "GET, HEAD"),
    ],
)
async def test_an_unknown_path_or_method_is_an_error(
    method: str, path: str, status: int, allow: str | None
) -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        reply = await router.http.request(method, path)
    assert_error(reply, status, "model" if "models/" in path else None, "")
    assert reply.headers.get("allow") == allow


async def test_head_and_options_are_answered() -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        head = await router.http.head("/health")
        options = await router.http.options(CHAT)
        ready = await router.http.get("/ready")
    assert (head.status_code, head.content) == (200, b"")
    assert (options.status_code, options.headers["allow"]) == (204, "POST, OPTIONS")
    assert (ready.status_code, ready.json()["replicas"]) == (200, {"r0": "ready"})


async def raw(router: RunningRouter, request: bytes) -> bytes:
    host, port = router.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    async with asyncio.timeout(20):
        reply = await reader.read()
    writer.close()
    return reply


async def test_a_body_that_does_not_arrive_is_answered_408() -> None:
    async with running_router(
        ScriptedReplica("r0"), pool=pool_with(router={"bodyTimeout": "50ms"})
    ) as router:
        reply = await raw(router, f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n{{".encode())
    assert reply.startswith(b"HTTP/1.1 408 ")
    assert b'"type":"timeout_error"' in reply


async def test_a_chunked_body_has_the_same_bound() -> None:
    async with running_router(ScriptedReplica("r0"), pool=pool_with(router={"maxBodyBytes": 1000})) as router:
        chunk = b"400\r\n" + b"x" * 1024 + b"\r\n"
        head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n".encode()
        reply = await raw(router, head + chunk + b"0\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 413 ")


async def test_headers_have_a_bound() -> None:
    async with running_router(ScriptedReplica("r0"), bounds=HttpBounds(head_bytes=2000)) as router:
        reply = await router.http.get("/health", headers={"x-long": "y" * 3000})
    assert reply.status_code == 431
    assert "2000 bytes" in reply.json()["error"]["message"]


async def test_a_client_that_sends_too_much_can_read_the_error() -> None:
    async with running_router(
        ScriptedReplica("r0"), pool=pool_with(router={"maxBodyBytes": 1_000_000})
    ) as router:
        reply = await router.http.post(CHAT, content=b"x" * 4_000_000)
        assert_error(reply, 413, None, "bound of 1000000")


async def test_a_body_far_over_the_bound_is_not_read() -> None:
    async with running_router(ScriptedReplica("r0"), pool=pool_with(router={"maxBodyBytes": 1000})) as router:
        reply = await raw(router, f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: 9000\r\n\r\n".encode())
    assert reply.startswith(b"HTTP/1.1 413 ")


@pytest.fixture
def with_applications(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "ide.txt").write_text("ide-key\n")
    (tmp_path / "night.txt").write_text("night-key\n")
    applications = [
        {"name": "ide", "tier": "coder", "allow": ["batch"], "keys": {"file": "ide.txt"}},
        {"name": "night", "tier": "batch", "keys": {"file": "night.txt"}},
    ]
    pool = pool_with(applications=applications)
    return {"pool": pool, "keys": load_keys(pool, tmp_path)}


@pytest.mark.parametrize(
    ("key", "header", "service_tier", "tier"),
    [
        ("ide-key", None, None, "coder"),
        ("ide-key", None, "batch", "coder"),
        ("ide-key", "batch", None, "batch"),
        ("ide-key", "coder", None, "coder"),
        ("night-key", None, "auto", "batch"),
    ],
)
async def test_a_key_has_its_tier(
    with_applications: dict[str, Any], key: str, header: str | None, service_tier: str | None, tier: str
) -> None:
    headers = {"authorization": f"Bearer {key}"} | ({"x-penstock-tier": header} if header else {})
    async with running_router(ScriptedReplica("r0"), **with_applications) as router:
        reply = await router.chat(headers, service_tier=service_tier)
    assert (reply.status_code, reply.headers["x-penstock-tier"]) == (200, tier)


async def test_unknown_or_missing_keys_are_answered_401(with_applications: dict[str, Any]) -> None:
    replica = ScriptedReplica("r0")
    async with running_router(replica, **with_applications) as router:
        with pytest.raises(AuthenticationError):
            await router.openai.chat.completions.create(model=MODEL, messages=HI)
        with pytest.raises(AuthenticationError):
            await router.openai.models.list()
        none = await router.chat()
        night = router.openai.with_options(api_key="night-key", default_headers={"x-penstock-tier": "coder"})
        with pytest.raises(PermissionDeniedError, match="may not use tier 'coder'"):
            await night.chat.completions.create(model=MODEL, messages=HI)
        assert (await router.http.get("/health")).status_code == 200
    assert_error(none, 401, "authorization", "no API key was given")
    assert none.headers["www-authenticate"] == "Bearer"
    assert replica.parts == []
