"""A replica that a gateway reaches over HTTP, with answers scripted by the test."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field

import grpc
import httptools
import orjson
from penstock_proto import replica_pb2 as wire
from scripted.replica import ScriptedReplica


@dataclass(slots=True)
class Seen:
    """A request received from the gateway."""

    path: str
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def backup(self) -> bool:
        """Whether it is to be served best effort, because replicas have rejected it."""
        return int(self.headers["x-envoy-attempt-count"]) > int(self.headers.get("x-penstock-max-hops", 9))


class HttpReplica(ScriptedReplica):
    """One replica.

    rejects: whatever comes. busy: rejects all but best effort. leaves: closes its port with its next answer.
    streams: answers with a stream, which goes on when `held` is set.
    floods: with a stream that does not end. held_back: set when its reader takes no more of one.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.rejects, self.busy, self.leaves, self.streams, self.floods = False, False, False, False, False
        self.held_back = asyncio.Event()
        self.held = asyncio.Event()
        self.seen: list[Seen] = []
        self.http_port = 0
        self.gone = asyncio.Event()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.http_port}"

    async def start(self) -> None:
        await super().start()
        loop = asyncio.get_running_loop()
        self._http = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.http_port)
        self.http_port = self._http.sockets[0].getsockname()[1]

    def close_http(self) -> None:
        """Take no more connections."""
        self._http.close()

    async def die(self) -> None:
        self.close_http()
        await super().die()

    async def Describe(
        self,
        request: wire.DescribeRequest,
        context: "grpc.aio.ServicerContext[wire.DescribeRequest, Awaitable[wire.DescribeReply]]",
    ) -> wire.DescribeReply:
        reply = await super().Describe(request, context)
        reply.http_port = self.http_port
        return reply


class _Connection(asyncio.Protocol):
    def __init__(self, replica: HttpReplica) -> None:
        self._replica, self._flooding = replica, False
        self._parser = httptools.HttpRequestParser(self)
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._replica.gone.set()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_url(self, url: bytes) -> None:
        self._seen = Seen(url.decode())

    def on_header(self, name: bytes, value: bytes) -> None:
        self._seen.headers[name.decode().lower()] = value.decode()

    def on_body(self, body: bytes) -> None:
        self._seen.body += body

    def on_message_complete(self) -> None:
        replica = self._replica
        replica.seen.append(self._seen)
        if replica.rejects or (replica.busy and not self._seen.backup):
            error = orjson.dumps({"error": {"code": "slo_unattainable"}})
            self._write(429, error, retry_after=7, hops=not self._seen.backup)
        elif replica.floods:
            self._flooding = True
            self._transport.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n")
            self._flood()
        elif replica.streams:
            self._task = asyncio.get_running_loop().create_task(self._stream())
        else:
            self._write(200, orjson.dumps({"replica": replica.name}))

    def _flood(self) -> None:
        """Write until the reader holds it back, a chunk a turn of the loop."""
        if self._flooding and not self._transport.is_closing():
            self._transport.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
            asyncio.get_running_loop().call_soon(self._flood)

    def pause_writing(self) -> None:
        self._flooding = False
        self._replica.held_back.set()

    def _write(self, status: int, body: bytes, retry_after: int = 0, hops: bool = False) -> None:
        headers = {"x-penstock-replica": self._replica.name, "content-length": len(body)}
        headers |= {"retry-after": retry_after} if retry_after else {}
        headers |= {"x-penstock-rejected": 1} if hops else {}
        headers |= {"connection": "close"} if self._replica.leaves else {}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._transport.write(f"HTTP/1.1 {status} X\r\n{lines}\r\n".encode() + body)
        if self._replica.leaves:
            self._replica.close_http()
            self._transport.close()

    async def _stream(self) -> None:
        self._transport.write(b"HTTP/1.1 200 X\r\ntransfer-encoding: chunked\r\n\r\n6\r\ndata: \r\n")
        await self._replica.held.wait()
        self._transport.write(b"8\r\n[DONE]\n\n\r\n0\r\n\r\n")
