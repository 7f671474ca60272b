"""One connection: answers that end before their requests do, and clients that do not read."""

import asyncio
import gc
import socket
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import openai
import pytest
import uvloop
from http_by_hand import Wire
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_connection.protocol import HttpProtocol
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import Server, listen, serving

MANY_BYTES = 6_000_000
PATIENCE_S = 20.0

Run = Callable[[Coroutine[Any, Any, None]], None]
on_each_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])


class App:
    """An app that refuses, echoes, or writes without end. gone: requests whose client has disconnected."""

    def __init__(self) -> None:
        self.gone: asyncio.Queue[HttpRequest] = asyncio.Queue()

    async def __call__(self, request: HttpRequest) -> None:
        match request.path:
            case "/early" | "/v1/chat/completions":
                raise ApiError(401, "unknown API key")
            case "/close":
                raise ApiError(413, "too large", headers=(("connection", "close"),))
            case "/echo":
                await request.answer(await request.body(10 * MANY_BYTES))
            case "/whole":
                await request.answer(b"x" * 4 * MANY_BYTES)
            case "/endless":
                await self._endless(request)
            case "/waits":
                await request.body(MANY_BYTES)
                gone = asyncio.Event()
                request.on_gone = gone.set
                await gone.wait()
                self.gone.put_nowait(request)
            case "/slow":
                request.start()
                await request.send(b"begun ")
                await asyncio.sleep(0.05)
                await request.end(b"ended")

    async def _endless(self, request: HttpRequest) -> None:
        request.start()
        while not request.gone:
            await request.send(b"x" * 65536)
            await asyncio.sleep(0)
        self.gone.put_nowait(request)


@asynccontextmanager
async def served(app: App, **bounds: Any) -> AsyncIterator[tuple[Server, tuple[str, int]]]:
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, 0.0, HttpBounds(**bounds)) as server:
        yield server, listener.getsockname()


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


async def none_left(server: Server) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while server.connections:  # noqa: ASYNC110  there is no event for it
            await asyncio.sleep(0.002)


@on_each_loop
@pytest.mark.parametrize(("path", "status"), [("/early", 401), ("/close", 413)])
def test_a_client_that_still_sends_reads_its_refusal_once(run: Run, path: str, status: int) -> None:
    async def story() -> None:
        async with served(App()) as (_, (host, port)), httpx2.AsyncClient(timeout=PATIENCE_S) as client:
            for _ in range(3):
                reply = await client.post(f"http://{host}:{port}{path}", content=b"x" * MANY_BYTES)
                assert (reply.status_code, reply.json()["error"]["type"]) == (status, "invalid_request_error")
            after = await client.post(f"http://{host}:{port}/echo", content=b"hello")
            assert (after.status_code, after.content) == (200, b"hello")

    run(story())


async def test_openais_client_reads_an_early_refusal_of_a_long_prompt() -> None:
    async with (
        served(App()) as (_, (host, port)),
        openai.AsyncOpenAI(base_url=f"http://{host}:{port}/v1", api_key="x", max_retries=0) as client,
    ):
        with pytest.raises(openai.AuthenticationError, match="unknown API key"):
            await client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "x" * MANY_BYTES}]
            )


@on_each_loop
def test_the_next_request_of_a_connection_is_answered_after_a_refused_one(run: Run) -> None:
    async def story() -> None:
        async with served(App(), head_bytes=1000) as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post("/early", b"x" * MANY_BYTES) + post("/echo", b"hello"))
            heads = [await reader.readuntil(b"\r\n\r\n")]
            await reader.readuntil(b"}}")
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            assert [head.split()[1] for head in heads] == [b"401", b"200"]
            assert await reader.readexactly(5) == b"hello"
            writer.close()

    run(story())


@on_each_loop
@pytest.mark.parametrize("bounds", [{"linger_bytes": 100_000}, {"linger_s": 0.05}], ids=["bytes", "seconds"])
@pytest.mark.parametrize("path", ["/early", "/close"])
def test_the_rest_of_a_refused_request_is_read_within_bounds(
    run: Run, bounds: dict[str, Any], path: str
) -> None:
    async def story() -> None:
        async with served(App(), **bounds) as (server, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post(path, b"x" * MANY_BYTES)[:-1])  # its end never comes
            await reader.readuntil(b"\r\n\r\n")
            await none_left(server)
            writer.transport.abort()

    run(story())


@on_each_loop
@pytest.mark.parametrize("junk", [b"no http at all\r\n\r\n" + b"x" * MANY_BYTES, b"x" * MANY_BYTES])
def test_a_client_that_sends_invalid_bytes_gets_the_reason(run: Run, junk: bytes) -> None:
    async def story() -> None:
        async with served(App()) as (server, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(junk)
            async with asyncio.timeout(PATIENCE_S):
                answered = await reader.read()
            assert answered.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 431 "))
            assert answered.count(b"\r\ncontent-length: ") == 1
            writer.close()
            await none_left(server)

    run(story())


@on_each_loop
def test_invalid_bytes_after_a_request_do_not_change_its_answer(run: Run) -> None:
    async def story() -> None:
        async with served(App()) as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(post("/slow", b""))
            await reader.readuntil(b"begun ")
            writer.write(b"no http at all\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                rest = await reader.read()
            assert rest == b"\r\n5\r\nended\r\n0\r\n\r\n"
            writer.close()

    run(story())


@on_each_loop
def test_an_invalid_request_is_answered_after_the_previous_one(run: Run) -> None:
    async def story() -> None:
        async with served(App()) as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            chunked = b"POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            writer.write(post("/slow", b"") + chunked + b"no length\r\n")
            async with asyncio.timeout(PATIENCE_S):
                answered = await reader.read()
            first, _, second = answered.partition(b"5\r\nended\r\n0\r\n\r\n")
            assert first.startswith(b"HTTP/1.1 200 ")
            assert second.startswith(b"HTTP/1.1 400 ")
            writer.close()

    run(story())


@on_each_loop
def test_a_disconnect_after_a_long_body_is_noticed(run: Run) -> None:
    """Its last part came while the app waited for it, and was more than is read ahead."""

    async def story() -> None:
        app = App()
        async with served(app) as (server, address):
            _, writer = await asyncio.open_connection(*address)
            request = post("/waits", b"x" * 200_000)
            writer.write(request[:-200_000])
            async with asyncio.timeout(PATIENCE_S):
                while not server.tasks:  # noqa: ASYNC110  there is no event for it
                    await asyncio.sleep(0.002)
                writer.write(request[-200_000:])
                await writer.drain()
                writer.close()
                await app.gone.get()

    run(story())


def slow_reader(address: tuple[str, int], path: str) -> socket.socket:
    """A client that asks and never reads."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(address)
    client.sendall(post(path, b""))
    return client


@on_each_loop
def test_a_stream_whose_client_does_not_read_is_dropped(run: Run) -> None:
    async def story() -> None:
        app = App()
        async with served(app, write_s=0.05) as (server, address):
            with slow_reader(address, "/endless"):
                async with asyncio.timeout(PATIENCE_S):
                    request = await app.gone.get()
                assert request.slow
                await none_left(server)

    run(story())


@on_each_loop
def test_a_whole_answer_that_no_client_reads_is_dropped(run: Run) -> None:
    async def story() -> None:
        async with served(App(), write_s=0.05) as (server, address):
            with slow_reader(address, "/whole"):
                await none_left(server)

    run(story())


async def test_a_client_that_reads_slowly_is_not_dropped() -> None:
    """A slow client is not dropped: only one that takes no byte between two checks is."""
    async with served(App(), write_s=30.0) as (server, _):
        transport = Wire()
        connection = server.connection()
        connection.connection_made(transport)
        transport.waiting_bytes = 70_000
        connection.pause_writing()
        for waiting_bytes in (70_000, 69_999, 69_998):
            transport.waiting_bytes = waiting_bytes
            connection._check_writes()
            assert not transport.aborted
        connection._check_writes()
        assert transport.aborted
        connection.connection_lost(ConnectionAbortedError())


async def test_an_empty_part_does_not_end_a_stream() -> None:
    async def app(request: HttpRequest) -> None:
        request.start()
        assert all([request.write(data) for data in (b"a", b"", b"b")])
        await request.end()

    transport = Wire()
    async with serving(app, listen("127.0.0.1", 0), 0.0) as server:
        connection = server.connection()
        connection.connection_made(transport)
        connection.data_received(post("/", b""))
        await asyncio.wait(server.tasks)
        connection.connection_lost(None)
    assert transport.written.endswith(b"\r\n\r\n1\r\na\r\n1\r\nb\r\n0\r\n\r\n")


async def test_a_request_directly_after_a_refused_one_is_not_timed_as_an_idle_connection() -> None:
    """The refused one's rest and it come in one piece, so nothing more comes from the client meanwhile."""
    app = App()
    async with served(app) as (server, _):
        connection = server.connection()
        connection.connection_made(Wire())
        refused = post("/early", b"hello")
        connection.data_received(refused[:-1])
        await asyncio.wait(server.tasks)
        connection.data_received(refused[-1:] + post("/waits", b""))
        assert "idle" not in connection._timers
        connection.connection_lost(ConnectionResetError())
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait(server.tasks)


async def test_an_answer_to_a_client_that_has_just_disconnected_is_not_a_fault(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Between the end of a connection and the app's hearing of it, the app writes on."""
    async with served(App()) as (server, _):
        transport = Wire()
        connection = server.connection()
        connection.connection_made(transport)
        connection.data_received(post("/slow", b""))
        (answering,) = server.tasks
        async with asyncio.timeout(PATIENCE_S):
            while not transport.written:  # noqa: ASYNC110  a fake has no event for it
                await asyncio.sleep(0)
        transport.closed = True
        await answering
        connection.connection_lost(ConnectionAbortedError())
    assert transport.written.endswith(b"begun \r\n")
    assert "Exception" not in caplog.text


def test_a_lost_connection_is_freed_without_a_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under uvloop, as every process runs: what waits for collections would grow with the rate of clients."""
    living: weakref.WeakSet[HttpProtocol] = weakref.WeakSet()
    made = HttpProtocol.connection_made

    def counted(self: HttpProtocol, transport: asyncio.Transport) -> None:
        living.add(self)
        made(self, transport)

    monkeypatch.setattr(HttpProtocol, "connection_made", counted)

    async def story() -> None:
        async with served(App()) as (server, (host, port)):
            for path in ("/echo", "/early", "/close", "/whole"):
                async with httpx2.AsyncClient(timeout=PATIENCE_S) as client:
                    await client.post(f"http://{host}:{port}{path}", content=b"hello")
            _, writer = await asyncio.open_connection(host, port)
            writer.write(post("/echo", b"hello")[:-1])
            async with asyncio.timeout(PATIENCE_S):
                while not server.tasks:  # noqa: ASYNC110  there is no event for it
                    await asyncio.sleep(0.002)
            writer.close()
            assert living
            await none_left(server)
            async with asyncio.timeout(PATIENCE_S):
                while living:  # noqa: ASYNC110  no event signals an object's end
                    await asyncio.sleep(0.002)

    gc.disable()
    try:
        uvloop.run(story())
    finally:
        gc.enable()


async def test_a_connection_lost_during_two_requests_is_not_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    """The first is being answered, the second waits its turn; neither raises without a reader."""
    app = App()
    async with served(app) as (server, _):
        transport = Wire()
        connection = server.connection()
        connection.connection_made(transport)
        connection.data_received(post("/echo", b"hello") * 2)
        transport.closed = True
        connection.connection_lost(ConnectionResetError())
        await none_left(server)
    assert not [line for line in caplog.records if line.levelname == "ERROR" and line.exc_info]
