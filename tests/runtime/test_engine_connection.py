"""A connection to an engine that is slow, faulty or hostile; which connections are kept, and for how long."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from patience import eventually as until
from penstock_runtime.engine import connection as engine_connection
from penstock_runtime.engine.connection import EngineConnection, EngineGone
from penstock_runtime.engine.connections import EngineConnections
from self_signed import Identity

ASKED = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
OK = b"HTTP/1.1 200 OK\r\n"
WHOLE = OK + b"content-length: 2\r\n\r\nhi"
CHUNKED = OK + b"transfer-encoding: chunked\r\n\r\n"

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def engine(script: Script, idle_s: float = 60.0) -> AsyncIterator[EngineConnections]:
    """Connections to an engine that does this on each of them, until the test is over."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await script(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    connections = EngineConnections(
        f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", connect_s=60.0, idle_s=idle_s
    )
    yield connections
    connections.close()
    server.close()


def responds(*parts: bytes, then_closes: bool = True) -> Script:
    """Return an engine that answers one request with these parts, each in its own segment."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await writer.drain()
        if not then_closes:
            await reader.read(1)

    return script


async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every request of the connection."""
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(WHOLE)


async def exchanged(connections: EngineConnections) -> tuple[int, bytes, EngineConnection]:
    """Status and body of one answer, and the connection that it came by, given back."""
    connection = await connections.take()
    parts: list[bytes] = []
    try:
        await connection.send_request(ASKED, b"")
        await connection.receive_body(parts.append)
        return connection.status, b"".join(parts), connection
    finally:
        connections.give_back(connection)


@pytest.mark.parametrize(
    ("output", "status", "body"),
    [
        ([WHOLE], 200, b"hi"),
        ([bytes([byte]) for byte in WHOLE], 200, b"hi"),
        ([CHUNKED, b"2;hint=1\r\nhi\r\n1\r\n!\r\n", b"0\r\ntrailer: 1\r\n\r\n"], 200, b"hi!"),
        ([OK + b"\r\n", b"until ", b"its end"], 200, b"until its end"),
        ([b"HTTP/1.0 200 OK\r\n\r\nold"], 200, b"old"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n", WHOLE], 200, b"hi"),
        ([b"HTTP/1.1 103 Early Hints\r\ncontent-length: 9\r\n\r\n" + WHOLE], 200, b"hi"),
        ([b"HTTP/1.1 204 No Content\r\n\r\n"], 204, b""),
        ([WHOLE + b"and more that no one has asked for"], 200, b"hi"),
        ([WHOLE + WHOLE], 200, b"hi"),
    ],
    ids=["whole", "bytes", "chunks", "to the end", "1.0", "100", "103", "no body", "noise", "two answers"],
)
async def test_an_answer_is_read_in_any_framing(output: list[bytes], status: int, body: bytes) -> None:
    async with engine(responds(*output)) as connections:
        assert (await exchanged(connections))[:2] == (status, body)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ([], "ConnectionError: the engine closed"),
        ([OK], "ConnectionError: the engine closed"),
        ([OK + b"content-length: 9\r\n\r\nhi"], "ConnectionError: the engine closed"),
        ([CHUNKED + b"5\r\nhel"], "ConnectionError: the engine closed"),
        ([CHUNKED + b"5\r\nhello\r\n"], "ConnectionError: the engine closed"),
        ([CHUNKED + b"xyz\r\n"], "HttpParser"),
        ([CHUNKED + b"-1\r\n"], "HttpParser"),
        ([CHUNKED + b"fffffffffffffffffff\r\n"], "HttpParser"),
        ([b"SSH-2.0-OpenSSH_9.6\r\n"], "HttpParser"),
        ([OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\nhi"], "HttpParser"),
        ([b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"], "HttpParser"),
    ],
    ids=[
        "nothing",
        "half a head",
        "half a body",
        "half a chunk",
        "no last chunk",
        "no chunk",
        "a negative one",
        "a huge one",
        "no HTTP",
        "two lengths",
        "another protocol",
    ],
)
async def test_an_incomplete_or_invalid_answer_counts_as_a_lost_engine(
    output: list[bytes], cause: str
) -> None:
    async with engine(responds(*output)) as connections:
        with pytest.raises(EngineGone, match=cause):
            await exchanged(connections)
        assert connections.idle == 0


@pytest.mark.parametrize(
    "output",
    [
        OK + b"a: " + b"x" * 1000,
        OK + b"a: b\r\n" * 200,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
        CHUNKED + b"0\r\n" + b"trailer: 1\r\n" * 100,
        CHUNKED + b"1;" + b"x" * 1000,
    ],
    ids=["a long header", "many headers", "interim answers", "trailers", "a chunk's extension"],
)
async def test_bytes_outside_the_body_are_bounded(output: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_connection, "HEAD_BYTES", 500)
    async with engine(responds(output, then_closes=False)) as connections:
        with pytest.raises(EngineGone, match="more than 500 bytes without a part of a body"):
            await exchanged(connections)


async def test_each_read_is_forwarded_before_the_answer_is_complete() -> None:
    went_on = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"1\r\na\r\n1\r\nb\r\n")
        await went_on.wait()
        writer.write(b"1\r\nc\r\n0\r\n\r\n")

    async with engine(script) as connections:
        connection = await connections.take()
        await connection.send_request(ASKED, b"")
        seen: list[bytes] = []
        reading = asyncio.ensure_future(connection.receive_body(seen.append))
        await until(lambda: b"".join(seen) == b"ab")
        assert not reading.done()
        went_on.set()
        await reading
        assert b"".join(seen) == b"abc"
        connection.close()


async def test_an_error_of_the_receiver_ends_the_exchange() -> None:
    def raises(data: bytes) -> None:
        raise RuntimeError(data.decode())

    async with engine(responds(CHUNKED, b"2\r\nhi\r\n", then_closes=False)) as connections:
        connection = await connections.take()
        await connection.send_request(ASKED, b"")
        with pytest.raises(RuntimeError, match="hi"):
            await connection.receive_body(raises)
        assert not connection.reusable


async def test_a_cancel_ends_forwarding_and_disconnects_from_the_engine() -> None:
    went = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"1\r\na\r\n")
        try:
            await reader.read(1)
        finally:
            went.set()

    async with engine(script) as connections:
        seen: list[bytes] = []
        connection = await connections.take()
        await connection.send_request(ASKED, b"")
        reading = asyncio.ensure_future(connection.receive_body(seen.append))
        await until(lambda: seen == [b"a"])
        reading.cancel()
        connection.data_received(b"1\r\nb\r\n")  # read in the turn in which it was cancelled
        connections.give_back(connection)
        await went.wait()
        assert (seen, connections.idle) == ([b"a"], 0)


async def test_a_connection_is_kept_after_a_whole_answer_and_the_latest_is_used_first() -> None:
    async with engine(answers) as connections:
        first, second = await connections.take(), await connections.take()
        for connection in (first, second):
            await connection.send_request(ASKED, b"")
            await connection.receive_body(lambda _: None)
            connections.give_back(connection)
        assert connections.idle == 2
        assert (await exchanged(connections))[2] is second
        used = [(await exchanged(connections))[2] for _ in range(3)]
        assert all(one is other for one, other in pairwise(used))


@pytest.mark.parametrize(
    "output",
    [
        OK + b"content-length: 2\r\nconnection: close\r\n\r\nhi",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
        WHOLE + b"more",
    ],
)
async def test_a_connection_that_cannot_be_used_again_is_closed(output: bytes) -> None:
    async with engine(responds(output, then_closes=False)) as connections:
        assert (await exchanged(connections))[1] == b"hi"
        assert connections.idle == 0


async def test_a_kept_connection_is_closed_by_either_side_or_by_unexpected_bytes() -> None:
    speaks = asyncio.Event()

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await speaks.wait()
        writer.write(WHOLE)
        await reader.read(1)

    async with engine(script) as connections:
        await exchanged(connections)
        assert connections.idle == 1
        speaks.set()
        await until(lambda: connections.idle == 0)
    async with engine(responds(WHOLE)) as connections:  # the engine closes
        await exchanged(connections)
        await until(lambda: connections.idle == 0)
    async with engine(answers, idle_s=0.01) as connections:  # it is unused
        await exchanged(connections)
        await until(lambda: connections.idle == 0)


async def test_a_connection_that_closes_before_its_use_counts_as_a_lost_engine() -> None:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Close."""

    async with engine(script) as connections:
        connection = await connections.open()
        await until(connection.transport.is_closing)
        with pytest.raises(EngineGone, match="the engine closed the connection before a request"):
            await connection.send_request(ASKED, b"")


async def test_all_addresses_of_a_host_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` may be `::1` first, where an engine listens on 127.0.0.1 only."""
    async with engine(answers) as connections:
        there = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", connections._port))
        nowhere = (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 1))

        async def resolved(*_: object, **__: object) -> Sequence[object]:
            return addresses

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolved)
        addresses = [nowhere, there]
        assert (await exchanged(connections))[1] == b"hi"
        addresses = [nowhere, nowhere]
        with pytest.raises(EngineGone, match="ConnectionRefusedError"):
            await connections.open()
        addresses = []
        with pytest.raises(EngineGone, match="has no address"):
            await connections.open()


async def test_an_engine_that_accepts_no_connection_in_time_counts_as_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connections = EngineConnections("https://engine/v", connect_s=0.01, idle_s=1.0)
    assert (connections.authority, connections.path) == ("engine", "/v")

    async def never(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", never)
    with pytest.raises(EngineGone, match="TimeoutError"):
        await connections.open()


async def test_an_engine_under_tls_needs_a_trusted_certificate(tmp_path: Path) -> None:
    identity = Identity(tmp_path)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answers(reader, writer)
        writer.close()

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(identity.cert, identity.key)
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    connections = EngineConnections(url, connect_s=60.0, idle_s=60.0)
    with pytest.raises(EngineGone, match="SSLCertVerificationError"):
        await connections.open()
    connections.close()
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    connections = EngineConnections(url, 60.0, 60.0, lambda: trusting)
    assert (await exchanged(connections))[:2] == (200, b"hi")
    assert connections.idle == 1
    connections.close()
    server.close()
