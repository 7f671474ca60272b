"""Calls between this package and gRPC's own implementation, over sockets, in plain text and under TLS."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import uvloop
from authority import make_certificates
from google.protobuf.wrappers_pb2 import BytesValue
from penstock_runtime.client_tls import client_contexts
from penstock_runtime.grpc import client
from penstock_runtime.grpc.call import GrpcCall
from penstock_runtime.grpc.client import Channel
from penstock_runtime.grpc.messages import MESSAGE_BYTES
from penstock_runtime.grpc.server import grpc_serving, unary
from penstock_runtime.grpc.status import RpcError, Status
from penstock_runtime.serving import listen
from penstock_runtime.tls import server_context

ECHO, DOUBLE, REFUSE = (f"/test.Service/{method}" for method in ("Echo", "Double", "Refuse"))
SIZES = (0, 1, 16_384, 3_000_000, 7)
OPTIONS = (("grpc.max_receive_message_length", MESSAGE_BYTES),)
REFUSED = "100 % refused: ü"


class Ours:
    """The methods, served by this package."""

    def __init__(self) -> None:
        self.cancelled = asyncio.Event()
        self.handlers = {
            ECHO: self.echo,
            DOUBLE: unary(BytesValue, self.double),
            REFUSE: unary(BytesValue, self.refuse),
        }

    async def echo(self, call: GrpcCall) -> None:
        """Return each message."""
        messages: asyncio.Queue[BytesValue | None] = asyncio.Queue()
        receiving = asyncio.ensure_future(call.receive(BytesValue, messages.put_nowait))
        receiving.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                await call.write(message)
            await receiving
        except asyncio.CancelledError:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)
            self.cancelled.set()
            raise

    async def double(self, request: BytesValue, peer: str) -> BytesValue:
        """Return the bytes twice."""
        return BytesValue(value=2 * request.value)

    async def refuse(self, request: BytesValue, peer: str) -> BytesValue:
        """Return no reply."""
        raise RpcError(Status.FAILED_PRECONDITION, REFUSED)


class Theirs:
    """The same methods, served by gRPC's own server."""

    async def echo(self, messages: AsyncIterator[BytesValue], context: Any) -> AsyncIterator[BytesValue]:
        """Return each message."""
        async for message in messages:
            yield message

    async def double(self, request: BytesValue, context: Any) -> BytesValue:
        """Return the bytes twice."""
        return BytesValue(value=2 * request.value)

    async def refuse(self, request: BytesValue, context: Any) -> BytesValue:
        """Return no reply."""
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, REFUSED)
        raise AssertionError

    def added_to(self, server: "grpc.aio.Server") -> None:
        """Add the methods to a server."""
        formats: Any = (BytesValue.FromString, BytesValue.SerializeToString)
        handlers = {
            "Echo": grpc.stream_stream_rpc_method_handler(self.echo, *formats),
            "Double": grpc.unary_unary_rpc_method_handler(self.double, *formats),
            "Refuse": grpc.unary_unary_rpc_method_handler(self.refuse, *formats),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Service", handlers),))


@asynccontextmanager
async def their_server(credentials: grpc.ServerCredentials | None = None) -> AsyncIterator[str]:
    server = grpc.aio.server(options=OPTIONS)
    Theirs().added_to(server)
    address = "127.0.0.1:0"
    port = (
        server.add_insecure_port(address)
        if credentials is None
        else server.add_secure_port(address, credentials)
    )
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)


@asynccontextmanager
async def our_server(service: Ours, **options: Any) -> AsyncIterator[str]:
    listener = listen("127.0.0.1", 0)
    async with grpc_serving(service.handlers, listener, **options):
        yield f"127.0.0.1:{listener.getsockname()[1]}"


async def use_ours(channel: Channel) -> None:
    """Call all methods by this package's client."""
    messages = [BytesValue(value=bytes(size)) for size in SIZES]
    call = channel.open(ECHO)
    echoed: list[BytesValue] = []
    receiving = asyncio.ensure_future(call.receive(BytesValue, echoed.append))
    for message in messages:
        await call.write(message)
    call.finish_sending()
    await receiving
    assert echoed == messages
    doubled = await asyncio.gather(
        *(channel.request(DOUBLE, BytesValue(value=b"%d" % number), BytesValue) for number in range(150))
    )
    assert [reply.value for reply in doubled] == [2 * (b"%d" % number) for number in range(150)]
    with pytest.raises(RpcError) as failed:
        await channel.request(REFUSE, BytesValue(), BytesValue)
    assert (failed.value.status, failed.value.details) == (Status.FAILED_PRECONDITION, REFUSED)
    with pytest.raises(RpcError) as failed:
        await channel.request("/test.Service/None", BytesValue(), BytesValue)
    assert failed.value.status is Status.UNIMPLEMENTED


def theirs(channel: grpc.aio.Channel) -> Callable[[str], Any]:
    """Return a function that returns a method's callable."""
    formats: Any = (BytesValue.SerializeToString, BytesValue.FromString)
    return lambda method: (channel.stream_stream if method == ECHO else channel.unary_unary)(method, *formats)


async def use_theirs(channel: grpc.aio.Channel) -> None:
    """Call all methods by gRPC's own client."""
    method = theirs(channel)
    call = method(ECHO)()
    for size in SIZES:
        await call.write(BytesValue(value=bytes(size)))
        assert await call.read() == BytesValue(value=bytes(size))
    await call.done_writing()
    assert await call.code() is grpc.StatusCode.OK
    doubled = await asyncio.gather(*(method(DOUBLE)(BytesValue(value=b"x")) for _ in range(150)))
    assert [reply.value for reply in doubled] == [b"xx"] * 150
    for name, status in ((REFUSE, "FAILED_PRECONDITION"), ("/test.Service/None", "UNIMPLEMENTED")):
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await method(name)(BytesValue())
        assert failed.value.code().name == status
        assert name != REFUSE or failed.value.details() == REFUSED


async def test_our_client_and_their_server() -> None:
    async with their_server() as address, Channel(address) as channel:
        await use_ours(channel)


async def test_our_client_and_our_server() -> None:
    async with our_server(Ours()) as address, Channel(address) as channel:
        await use_ours(channel)


async def test_their_client_and_our_server() -> None:
    async with our_server(Ours()) as address, grpc.aio.insecure_channel(address, OPTIONS) as channel:
        await use_theirs(channel)


async def test_their_client_cancels_at_its_deadline() -> None:
    service = Ours()
    async with our_server(service) as address, grpc.aio.insecure_channel(address) as channel:
        call = theirs(channel)(ECHO)(timeout=0.05)
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call.read()
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await service.cancelled.wait()


async def test_a_server_that_is_gone_ends_calls() -> None:
    service = Ours()
    async with our_server(service, stop_s=0.0) as address:
        channel = Channel(address)
        await channel.__aenter__()
        receiving = asyncio.ensure_future(channel.open(ECHO).receive(BytesValue, lambda _: None))
        await asyncio.sleep(0)
    with pytest.raises(RpcError, match="unavailable"):
        await receiving
    await channel.__aexit__(None, None, None)


class Files:
    """An authority's certificate, and one identity that both ends use."""

    def __init__(self, folder: Path) -> None:
        make_certificates(folder)
        self.ca, self.cert, self.key = folder / "ca.pem", folder / "node.pem", folder / "node.key"

    def channel(self, address: str, *, certificate: bool = True) -> Channel:
        """Return this package's channel. certificate: whether it has one for the server."""
        cert, key = (self.cert, self.key) if certificate else (None, None)
        return Channel(address, client_contexts(self.ca, cert, key, protocol="h2"))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_our_server_under_mutual_tls(files: Files) -> None:
    context = server_context(files.cert, files.key, files.ca, "h2")
    async with our_server(Ours(), tls=context) as address:
        async with files.channel(address) as channel:
            await use_ours(channel)
        credentials = grpc.ssl_channel_credentials(
            files.ca.read_bytes(), files.key.read_bytes(), files.cert.read_bytes()
        )
        async with grpc.aio.secure_channel(address, credentials, OPTIONS) as theirs_:
            await use_theirs(theirs_)


def test_clients_without_the_servers_tls_are_refused(files: Files) -> None:
    """Under uvloop, as in every process; asyncio leaves its transport open when a handshake fails."""

    async def ask(channel: Channel) -> bytes:
        async with channel:
            return (await channel.request(DOUBLE, BytesValue(value=b"x"), BytesValue)).value

    async def story() -> None:
        service, context = Ours(), server_context(files.cert, files.key, files.ca, "h2")
        async with our_server(service, tls=context) as address:
            _, writer = await asyncio.open_connection(*address.split(":"))
            writer.write(b"not a handshake")
            writer.close()
            for channel in (files.channel(address, certificate=False), Channel(address)):
                with pytest.raises(RpcError, match="unavailable"):
                    await ask(channel)
            assert await ask(files.channel(address)) == b"xx"

    uvloop.run(story())


async def test_our_client_and_their_server_under_mutual_tls(files: Files) -> None:
    credentials = grpc.ssl_server_credentials(
        [(files.key.read_bytes(), files.cert.read_bytes())], files.ca.read_bytes(), True
    )
    async with their_server(credentials) as address, files.channel(address) as channel:
        await use_ours(channel)


async def test_a_port_without_a_server_is_unavailable() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(RpcError, match=r"unavailable: no connection: connection refused"):
            async with Channel(f"127.0.0.1:{taken.getsockname()[1]}"):
                raise AssertionError


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:99999"])
async def test_an_address_without_a_valid_port_is_unavailable(address: str) -> None:
    with pytest.raises(RpcError, match="unavailable: no connection"):
        async with Channel(address):
            raise AssertionError


async def test_a_server_that_never_ends_its_handshake_is_unavailable(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "CONNECT_S", 0.05)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(RpcError, match=r"unavailable: no connection within 0\.05 s"):
            async with files.channel(f"127.0.0.1:{silent.getsockname()[1]}"):
                raise AssertionError


async def test_a_server_of_another_protocol_ends_the_call() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        async with Channel(f"{host}:{port}") as channel:
            with pytest.raises(RpcError, match="internal: the peer broke HTTP/2: a frame of"):
                await channel.request(DOUBLE, BytesValue(), BytesValue)
