"""An API server on loopback that keeps requests and gives the answers that a test sets, in turn."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import orjson


@dataclass
class Request:
    """A received request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return orjson.loads(self.body)


@dataclass
class HttpApi:
    """answers: status and body of each request in turn, `{}` after the last; None: the connection closes."""

    answers: list[tuple[int, Any] | None] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    url: str = ""
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    @asynccontextmanager
    async def listening(
        self, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
    ) -> AsyncIterator["HttpApi"]:
        async with await asyncio.start_server(self._accept, host, 0, ssl=tls) as server:
            self.url = (
                f"{'https://localhost' if tls else 'http://127.0.0.1'}:{server.sockets[0].getsockname()[1]}"
            )
            yield self
        await asyncio.gather(*self._connections)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await _head(reader):
                lines = head.decode().split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = {k.lower(): v for k, _, v in (line.partition(": ") for line in lines[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                at = urlsplit(target)
                self.requests.append(Request(method, at.path, dict(parse_qsl(at.query)), headers, body))
                answer = self.answers.pop(0) if self.answers else (200, {})
                if answer is None:
                    return
                status, content = answer
                payload = content if isinstance(content, bytes) else orjson.dumps(content)
                writer.write(b"HTTP/1.1 %d Said\r\ncontent-length: %d\r\n\r\n" % (status, len(payload)))
                writer.write(payload)
        except ConnectionError:
            pass
        finally:
            writer.close()


async def _head(reader: asyncio.StreamReader) -> bytes:
    """A request's head; empty at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""
