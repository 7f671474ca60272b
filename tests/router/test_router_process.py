"""The process: how it starts, refuses to start, and stops."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from penstock_runtime.serving import listen
from scripted.replica import DONE, Part, Script, ScriptedReplica, chat_chunk
from scripted.router import MODEL, POOL_FILE


@pytest.fixture
def pool_file(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(POOL_FILE)
    return path


@asynccontextmanager
async def running(replica: ScriptedReplica) -> AsyncIterator[ScriptedReplica]:
    await replica.start()
    try:
        yield replica
    finally:
        await replica.die()


@asynccontextmanager
async def running_router(*args: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await router(*args)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def router(*args: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "penstock_router.main", "--admin-port", "0", *args),
        stderr=asyncio.subprocess.PIPE,
    )


async def ready_address(process: asyncio.subprocess.Process) -> str:
    return (await ready_addresses(process))[0]


async def ready_addresses(process: asyncio.subprocess.Process) -> tuple[str, str]:
    """Of the API, and of the admin port."""
    assert process.stderr is not None
    async with asyncio.timeout(30):
        while line := (await process.stderr.readline()).decode():
            address, admin = (re.search(rf"\b{name}=(\S+)", line) for name in ("address", "admin"))
            if address and admin and "ready" in line:
                return address[1], admin[1]
    raise AssertionError("it ended before it was ready")


def streams_until(event: asyncio.Event) -> Script:
    """Return a replica's script: a stream of one token that ends after the event."""

    async def script(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        await event.wait()
        part.output(DONE, tokens=0)
        part.finish()

    return script


async def test_the_router_serves_drains_on_sigterm_and_exits_0(pool_file: Path) -> None:
    reported = asyncio.Event()
    async with (
        running(ScriptedReplica("r0", streams_until(reported))) as replica,
        running_router("-f", str(pool_file), "--port", "0", "--replica", f"r0={replica.address}") as process,
        httpx2.AsyncClient(base_url=f"http://{await ready_address(process)}", timeout=20) as http,
    ):
        await status_of_ready(http, 200)
        body = {"model": MODEL, "messages": [], "stream": True}
        async with http.stream("POST", "/v1/chat/completions", json=body) as reply:
            lines = reply.aiter_lines()
            assert "one" in await anext(lines)
            process.terminate()
            reported.set()
            assert "data: [DONE]" in [line async for line in lines]
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def status_of_ready(http: httpx2.AsyncClient, wanted: int, url: str = "") -> httpx2.Response:
    async with asyncio.timeout(20):
        while (reply := await http.get(f"{url}/ready")).status_code != wanted:  # noqa: ASYNC110  as probes do
            await asyncio.sleep(0.01)
    return reply


async def test_a_stopping_router_serves_while_readiness_fails(pool_file: Path) -> None:
    async with (
        running(ScriptedReplica("r0")) as replica,
        running_router(
            *("-f", str(pool_file), "--port", "0"),
            *("--replica", f"r0={replica.address}", "--lame-duck-s", "20"),
        ) as process,
        httpx2.AsyncClient(base_url=f"http://{await ready_address(process)}", timeout=20) as http,
    ):
        await status_of_ready(http, 200)
        process.terminate()
        stopping = await status_of_ready(http, 503)
        assert stopping.json()["error"]["code"] == "draining"
        body = {"model": MODEL, "messages": []}
        served = await http.post("/v1/chat/completions", json=body)
        assert served.status_code == 200
        assert served.headers["connection"] == "close"  # whoever asks again asks another router
        process.terminate()
        assert await asyncio.wait_for(process.wait(), 30) == 1


async def test_the_admin_port_serves_until_the_last_request_has_ended(pool_file: Path) -> None:
    reported = asyncio.Event()
    async with (
        running(ScriptedReplica("r0", streams_until(reported))) as replica,
        running_router("-f", str(pool_file), "--port", "0", "--replica", f"r0={replica.address}") as process,
        httpx2.AsyncClient(timeout=20) as http,
    ):
        address, admin = await ready_addresses(process)
        (model,) = (await http.get(f"http://{address}/v1/models")).json()["data"]
        assert model["admin_url"] == f"http://{admin}"
        await status_of_ready(http, 200, f"http://{admin}")
        body = {"model": MODEL, "messages": [], "stream": True}
        async with http.stream("POST", f"http://{address}/v1/chat/completions", json=body) as reply:
            lines = reply.aiter_lines()
            assert "one" in await anext(lines)
            process.terminate()
            stopping = await status_of_ready(http, 503, f"http://{admin}")
            assert stopping.json()["error"]["code"] == "draining"
            assert "penstock_router_open_requests 1.0" in (await http.get(f"http://{admin}/metrics")).text
            reported.set()
            assert "data: [DONE]" in [line async for line in lines]
        assert await asyncio.wait_for(process.wait(), 30) == 0


async def refuses(*args: str) -> tuple[int | None, str]:
    process = await router(*args)
    _, said = await asyncio.wait_for(process.communicate(), 30)
    return process.returncode, said.decode()


@pytest.mark.parametrize(
    ("pool", "words"),
    [
        (POOL_FILE.replace("10s", '"10"'), 'spec.tiers[0].slo.ttft: "10" has no unit'),
        (
            POOL_FILE + "  routing: {backup: offload, pool: other}\n",
            "spec.routing.backup: ",
        ),
    ],
    ids=["no unit", "a backup no router can do"],
)
async def test_an_invalid_pool_exits_with_2(tmp_path: Path, pool: str, words: str) -> None:
    await asyncio.to_thread((tmp_path / "wrong.yaml").write_text, pool)
    code, said = await refuses("-f", str(tmp_path / "wrong.yaml"), "--replica", "r0=127.0.0.1:1")
    assert words in said
    assert code == 2


@pytest.mark.parametrize("replica", ["r0", "r0=", "=h:1", "r0=h:0", "r0=h:99999", "r0=:80"])
async def test_an_invalid_replica_address_exits_with_2(pool_file: Path, replica: str) -> None:
    code, said = await refuses("-f", str(pool_file), "--replica", replica)
    assert f"'{replica}' is not NAME=HOST:PORT" in said
    assert code == 2


@pytest.mark.parametrize(
    "flags",
    [("--replica-tls-ca", "/no/such.pem"), ("--tls-cert", "/no/such.pem", "--tls-key", "/no/key.pem")],
)
async def test_unreadable_certificates_exit_with_2(pool_file: Path, flags: tuple[str, ...]) -> None:
    code, said = await refuses("-f", str(pool_file), "--replica", "r0=h:1", *flags)
    assert (code, said) == (2, "/no/such.pem: No such file or directory\n")


async def test_a_taken_port_exits_with_1(pool_file: Path) -> None:
    holder = listen("127.0.0.1", 0)
    port = str(holder.getsockname()[1])
    code, said = await refuses("-f", str(pool_file), "--port", port, "--replica", "r0=127.0.0.1:1")
    assert f"cannot listen on 127.0.0.1:{port}: port taken" in said
    assert code == 1
    holder.close()


async def test_a_secret_of_an_unknown_application_exits_with_2(pool_file: Path) -> None:
    flags = ("--replica", "r0=127.0.0.1:1", "--key-secret", "ide=apps/ide-keys")
    assert await refuses("-f", str(pool_file), *flags) == (2, "--key-secret: tests has no application ide\n")


async def test_a_running_router_refuses_a_key_that_left_its_file(pool_file: Path) -> None:
    keys = pool_file.parent / "keys.txt"
    await asyncio.to_thread(keys.write_text, "first\nsecond\n")
    pool = POOL_FILE + "  applications: [{name: ide, tier: chat, keys: {file: keys.txt}}]\n"
    await asyncio.to_thread(pool_file.write_text, pool)
    async with (
        running_router("-f", str(pool_file), "--port", "0", "--replica", "r0=127.0.0.1:1") as process,
        httpx2.AsyncClient(base_url=f"http://{await ready_address(process)}", timeout=20) as http,
    ):

        async def status(key: str) -> int:
            return (await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})).status_code

        assert (await status("first"), await status("second")) == (200, 200)
        await asyncio.to_thread(keys.write_text, "second\n")
        async with asyncio.timeout(20):
            while await status("first") != 401:  # noqa: ASYNC110  as clients do
                await asyncio.sleep(0.05)
        assert await status("second") == 200
