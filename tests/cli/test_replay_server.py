"""What a replay reads from a server before it starts, and its errors without one."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from penstock_cli.failure import Failure
from penstock_cli.replay.server import AdminPages, ReplayServer, inspect_server
from penstock_cli.replay.tier_slos import TierSlos

MODELS = {"data": [{}, {"id": "a", "max_model_len": 4096}, {"id": "b", "engine": "simulated"}]}


@asynccontextmanager
async def answering(body: Any, status: int = 200) -> AsyncIterator[str]:
    """The address of a server that answers so to everything."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=body, status=status) if isinstance(body, str) else web.json_response(body)

    app = web.Application()
    app.router.add_get("/{any:.*}", answer)
    async with TestServer(app) as server:
        yield str(server.make_url("")).rstrip("/")


async def inspected(url: str, model: str | None = None) -> ReplayServer:
    async with aiohttp.ClientSession() as session:
        return await inspect_server(session, url, model, AdminPages(session, None))


async def failure(url: str, model: str | None = None) -> Failure:
    with pytest.raises(Failure) as caught:
        await inspected(url, model)
    return caught.value


async def test_a_server_without_a_pool_reports_only_its_models() -> None:
    async with answering(MODELS) as url:
        assert await inspected(url) == ReplayServer("a", False, 4096, None, None, TierSlos(), ())
        assert await inspected(url, "b") == ReplayServer("b", True, None, None, None, TierSlos(), ())
        assert str(await failure(url, "c")) == f'{url}: does not serve model "c"; it serves a, b'


async def test_a_server_without_models_is_refused() -> None:
    async with answering({}) as url:
        assert str(await failure(url)) == f'{url}: does not serve model ""; it serves none'


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_requires_a_key_is_reported(status: int) -> None:
    async with answering("no", status) as url:
        assert str(await failure(url)) == f"{url}/v1/models: answers {status}; give a key with --api-key"


@pytest.mark.parametrize(("body", "status"), [("gone", 404), ("{}", 201), ("[]", 200)])
async def test_a_server_of_another_kind_is_reported(body: str, status: int) -> None:
    async with answering(body, status) as url:
        assert str(await failure(url)) == (f"{url}: not an OpenAI-compatible server: it has no /v1/models")


async def test_an_answer_that_is_not_json_is_one_line() -> None:
    async with answering("hello") as url:
        output = str(await failure(url))
    assert output.startswith(f"{url}/v1/models: ") and "\n" not in output


async def test_a_closed_port_is_an_error_of_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    refused = await failure(url)
    assert str(refused) == f"{url}/v1/models: no server answers there (Connection refused)"


async def test_an_invalid_url_is_invalid_input() -> None:
    invalid = await failure("http://:80:80")
    assert "not a URL; write for example http://127.0.0.1:8080" in str(invalid)
    assert invalid.exit_code == 2


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://127.0.0.1:8080", True),
        ("http://localhost:8080", True),
        ("http://10.0.0.5:8080", False),
        ("http://pool.example", False),
        ("http://", False),
    ],
)
async def test_the_admin_port_of_a_remote_server_is_ignored(url: str, asked: bool) -> None:
    async with answering({"model": "m"}) as admin_url, aiohttp.ClientSession() as session:
        found = await AdminPages(session, None).pool(url, {"id": "m", "admin_url": admin_url})
    assert (found is not None) is asked
