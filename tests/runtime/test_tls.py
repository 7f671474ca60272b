"""HTTP under TLS: which certificate is shown when, and that handshakes are bounded too."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, suppress
from errno import EMFILE
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_request import PIECE_BYTES, HttpRequest
from penstock_runtime.serving import listen, serving
from penstock_runtime.tls import server_context
from self_signed import Identity

PATIENCE_S = 20.0

Run = Callable[[Coroutine[Any, Any, None]], None]
on_each_loop = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
BOUNDS = HttpBounds(head_s=0.2, last_call_s=0.01)


@pytest.fixture
def identity(tmp_path: Path) -> Iterator[Identity]:
    yield Identity(tmp_path)


async def app(request: HttpRequest) -> None:
    await request.answer(await request.body(1000))


@asynccontextmanager
async def served(identity: Identity, bounds: HttpBounds = BOUNDS) -> AsyncIterator[tuple[str, int]]:
    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, 5.0, bounds, server_context(identity.cert, identity.key)):
        yield listener.getsockname()


async def test_a_stopped_server_does_not_listen(identity: Identity) -> None:
    with listen("127.0.0.1", 0) as listener:
        async with serving(app, listener, 5.0, BOUNDS, server_context(identity.cert, identity.key)):
            assert listener.fileno() >= 0
        assert listener.fileno() == -1


class Client:
    """One connection under TLS, by a client that does not verify certificates."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def shown(self) -> bytes:
        found: bytes = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return found

    def stop_reading(self) -> None:
        cast(asyncio.Transport, self._writer.transport).pause_reading()

    def write(self, request: bytes) -> None:
        self._writer.write(request)

    async def echoed(self, text: bytes) -> bytes:
        """Return the bytes that are echoed."""
        head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(text)
        self._writer.write(head + text)
        await self._reader.readuntil(b"\r\n\r\n")
        return await self._reader.readexactly(len(text))


@asynccontextmanager
async def connected(address: tuple[str, int]) -> AsyncIterator[Client]:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        yield Client(reader, writer)
        writer.close()


async def test_requests_are_answered_under_tls(identity: Identity) -> None:
    async with served(identity) as address, connected(address) as client:
        assert await client.echoed(b"hello") == b"hello"
        assert client.shown == identity.shown


async def test_a_renewed_certificate_is_shown_to_new_connections_only(
    identity: Identity,
) -> None:
    async with served(identity) as address, connected(address) as old:
        assert await old.echoed(b"before") == b"before"
        identity.renew()
        async with connected(address) as new:
            assert await new.echoed(b"new") == b"new"
            assert new.shown == identity.shown != old.shown
        assert await old.echoed(b"after") == b"after"


async def test_a_certificate_without_its_key_is_not_used(identity: Identity) -> None:
    before = identity.shown
    async with served(identity) as address:
        identity.renew(key=False)
        async with connected(address) as client:
            assert client.shown == before
            assert await client.echoed(b"hello") == b"hello"


@on_each_loop
def test_a_client_that_does_not_read_has_no_larger_buffer_than_without_tls(
    run: Run, identity: Identity
) -> None:
    """The loops' own bound under TLS is eight times as high."""

    async def story() -> None:
        buffered_bytes = asyncio.get_running_loop().create_future()

        async def floods(request: HttpRequest) -> None:
            request.start()
            while request.write(b"x" * 1000):  # noqa: ASYNC110  the kernel sends no event for its buffers
                await asyncio.sleep(0)
            buffered_bytes.set_result(request._transport.get_write_buffer_size())
            request.break_slow()
            await request.end()

        listener, tls = listen("127.0.0.1", 0), server_context(identity.cert, identity.key)
        async with (
            serving(floods, listener, 5.0, BOUNDS, tls),
            connected(listener.getsockname()) as client,
        ):
            client.stop_reading()
            client.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            assert PIECE_BYTES <= await buffered_bytes < 1.1 * PIECE_BYTES

    run(story())


async def test_a_client_that_begins_no_handshake_is_closed_in_time(identity: Identity) -> None:
    async with served(identity) as address, asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.read() == b""
        writer.close()


@on_each_loop
def test_handshakes_that_never_end_are_bounded_in_number(identity: Identity, run: Run) -> None:
    async def story() -> None:
        bounds = HttpBounds(connections=3, last_call_s=0.01)
        async with served(identity, bounds) as address, asyncio.timeout(PATIENCE_S):
            async with connected(address) as client:
                begun = [await asyncio.open_connection(*address) for _ in range(2)]
                reader, over = await asyncio.open_connection(*address)
                assert await reader.read() == b""
                assert await client.echoed(b"goes on") == b"goes on"
                for _, writer in (*begun, (reader, over)):
                    writer.close()
            await served_again(address)

    run(story())


async def test_a_client_over_the_bound_that_has_sent_bytes_is_closed_without_a_reset(
    identity: Identity,
) -> None:
    async with served(identity, HttpBounds(connections=0)) as address, asyncio.timeout(PATIENCE_S):
        client = socket.create_connection(address)
        client.sendall(b"x" * 500)  # it is there before the server takes the connection
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b""
        client.close()


async def test_http_1_is_negotiated_with_clients_that_offer_2(identity: Identity) -> None:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with served(identity) as address, asyncio.timeout(PATIENCE_S):
        _, writer = await asyncio.open_connection(*address, ssl=context)
        assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        writer.close()
        await writer.wait_closed()


async def test_without_file_descriptors_the_next_client_is_accepted_after_a_pause(
    identity: Identity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock_runtime.tls_server.NO_SOCKETS_PAUSE_S", 0.02)
    loop, tried_s = asyncio.get_running_loop(), list[float]()
    accept = loop.sock_accept

    async def none_left(listener: socket.socket) -> Any:
        tried_s.append(loop.time())
        if len(tried_s) <= 2:
            raise OSError(EMFILE, "Too many open files")
        return await accept(listener)

    monkeypatch.setattr(loop, "sock_accept", none_left)
    async with served(identity) as address, connected(address) as client:
        assert await client.echoed(b"hello") == b"hello"
    assert min(later - sooner for sooner, later in pairwise(tried_s[:3])) >= 0.019


@on_each_loop
def test_a_failed_handshake_frees_its_place(identity: Identity, run: Run) -> None:
    async def story() -> None:
        bounds = HttpBounds(connections=1, last_call_s=0.01)
        async with served(identity, bounds) as address, asyncio.timeout(PATIENCE_S):
            for _ in range(3):
                reader, writer = await asyncio.open_connection(*address)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                with suppress(ConnectionError):
                    await reader.read()
                writer.close()
                await served_again(address)

    run(story())


async def served_again(address: tuple[str, int]) -> None:
    """Wait until a connection is served: the server notices closed ones a moment later."""
    while True:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            async with connected(address) as client:
                assert await client.echoed(b"hello") == b"hello"
                return


async def test_leaving_ends_handshakes(identity: Identity) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with served(identity, HttpBounds()) as address:
            reader, writer = await asyncio.open_connection(*address)
            async with connected(address) as later:  # accepted in order
                assert await later.echoed(b"hello") == b"hello"
        assert await reader.read() == b""
        writer.close()


async def test_leaving_closes_idle_connections(identity: Identity) -> None:
    async with asyncio.timeout(PATIENCE_S):
        async with served(identity) as address:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            reader, writer = await asyncio.open_connection(*address, ssl=context)
        assert await reader.read() == b""
        writer.close()


def test_files_that_are_not_a_pair_are_reported(identity: Identity) -> None:
    identity.renew(key=False)
    with pytest.raises(
        OSError, match=r"not a certificate with its key in .*tls\.key \(KEY_VALUES_MISMATCH\)"
    ):
        server_context(identity.cert, identity.key)
    identity.key.unlink()
    with pytest.raises(FileNotFoundError):
        server_context(identity.cert, identity.key)
