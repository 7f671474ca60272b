"""HTTP client of one engine. The bytes of an answer are passed on unchanged.

Every connection failure becomes `EngineGone`; an error status is an answer like any other.
"""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from penstock_runtime.client_tls import Contexts
from penstock_runtime.engine.connection import EngineConnection, Receive
from penstock_runtime.engine.connections import EngineConnections
from penstock_runtime.engine_key import bearer

EVENT_STREAM = b"text/event-stream"

HEADERS = {"accept": "*/*", "accept-encoding": "identity"}
"""Headers of every request. Answers are passed on untouched, so they must not be compressed."""

IDLE_CONNECTION_S = 4.0
"""An unused engine connection is closed after this: before uvicorn, under vLLM, closes it at 5 s."""


class AnswerTooLong(Exception):
    """An answer that is held whole exceeds the bound."""


@dataclass(frozen=True, slots=True)
class EngineResponse:
    """The engine's response, its body still to come.

    each: passes each piece of the body to a function as it comes, and returns at its end.
    """

    status: int
    streamed: bool
    each: Callable[[Receive], Awaitable[None]]

    async def whole(self, most_bytes: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong."""
        parts, size = list[bytes](), 0

        def receive(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size > most_bytes:
                raise AnswerTooLong(f"the engine's answer is over the bound of {most_bytes} bytes")
            parts.append(data)

        await self.each(receive)
        return b"".join(parts)


class EngineHttp:
    """Connections to one engine at `url`.

    agent: the name of this process. api_key: the engine's; empty without one.
    connect_s: timeout for a connection. idle_s: an unused one is closed after it.
    tls: for a URL with https; None for the authorities that this machine trusts.
    """

    def __init__(
        self,
        url: str,
        agent: str,
        *,
        api_key: str,
        connect_s: float,
        idle_s: float = IDLE_CONNECTION_S,
        tls: Contexts | None = None,
    ) -> None:
        self._connections = EngineConnections(url, connect_s, idle_s, tls)
        headers = {"host": self._connections.authority, **HEADERS, "user-agent": agent, **bearer(api_key)}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._heads: dict[tuple[str, str], bytes] = {}

    @property
    def idle(self) -> int:
        """Number of idle connections."""
        return self._connections.idle

    @contextlib.asynccontextmanager
    async def post(self, path: str, body: bytes, request_id: str) -> AsyncIterator[EngineResponse]:
        """Send a body. The answer is closed with the block. Raises EngineGone, from within the block too."""
        own = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}"
        connection = await self._connections.take()
        try:
            yield await _asked(connection, self._head("POST", path) + own.encode() + b"\r\n\r\n", body)
        finally:
            self._connections.give_back(connection)

    async def page(self, path: str, most_bytes: int) -> tuple[int, bytes | None]:
        """Return the status and the body of one of the engine's own pages; None for a body over the bound.

        Each has a connection of its own: one that was kept may be to an engine that is gone. A redirect is
        not followed: it leads to somebody else's.
        """
        connection = await self._connections.open()
        try:
            answer = await _asked(connection, self._head("GET", path) + b"connection: close\r\n\r\n", b"")
            return answer.status, await answer.whole(most_bytes)
        except AnswerTooLong:
            return connection.status, None
        finally:
            connection.close()

    def close(self) -> None:
        """Close idle connections, and keep none any more."""
        self._connections.close()

    def _head(self, method: str, path: str) -> bytes:
        """Return the part of a head that all requests of a path share."""
        head = self._heads.get((method, path))
        if head is None:
            line = f"{method} {self._connections.path}{path} HTTP/1.1\r\n{self._headers}"
            head = self._heads[method, path] = line.encode("latin-1")
        return head


async def _asked(connection: EngineConnection, head: bytes, body: bytes) -> EngineResponse:
    """Send a request, and return its answer once its head has come. Raises EngineGone."""
    await connection.ask(head, body)
    return EngineResponse(
        connection.status, connection.content_type.startswith(EVENT_STREAM), connection.each
    )
