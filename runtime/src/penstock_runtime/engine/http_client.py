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
from penstock_runtime.gateway_headers import DECIDED

EVENT_STREAM = b"text/event-stream"

HEADERS = {"accept": "*/*", "accept-encoding": "identity", DECIDED: "1"}
"""Headers of every request. Answers are passed on unchanged, so they must not be compressed."""

FULL = frozenset({429, 503})
"""Statuses of an engine without capacity. The next replica is tried."""

IDLE_CONNECTION_S = 4.0
"""Seconds after which an unused connection is closed, before vLLM's uvicorn closes it after 5 s."""


class AnswerTooLong(Exception):
    """A buffered answer exceeds the bound."""


@dataclass(frozen=True, slots=True)
class EngineResponse:
    """The engine's response before its body is read.

    receive_body: passes each piece of the body to a function as it arrives, and returns at its end.
    """

    status: int
    streamed: bool
    receive_body: Callable[[Receive], Awaitable[None]]

    async def body(self, most_bytes: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong."""
        parts, size = list[bytes](), 0

        def receive(data: bytes) -> None:
            nonlocal size
            size += len(data)
            if size > most_bytes:
                raise AnswerTooLong(f"the engine's answer is over the bound of {most_bytes} bytes")
            parts.append(data)

        await self.receive_body(receive)
        return b"".join(parts)


class EngineHttp:
    """Connections to one engine at `url`.

    agent: the name of this process. api_key: the engine's API key; empty without one.
    connect_s: timeout for a connection. idle_s: time after which an unused one is closed.
    tls: contexts for an https URL; None: the authorities that this machine trusts.
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
        """Return the number of idle connections."""
        return self._connections.idle

    @contextlib.asynccontextmanager
    async def post(self, path: str, body: bytes, request_id: str) -> AsyncIterator[EngineResponse]:
        """Send a body. Leaving the block closes the answer. Raises EngineGone, also inside the block."""
        own = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}"
        connection = await self._connections.take()
        try:
            yield await _response(connection, self._head("POST", path) + own.encode() + b"\r\n\r\n", body)
        finally:
            self._connections.give_back(connection)

    async def page(self, path: str, most_bytes: int) -> tuple[int, bytes | None]:
        """Return the status and the body of one of the engine's own pages; None for a body over the bound.

        Each request has a new connection, because an idle one may belong to an earlier engine. A redirect is
        not followed, because it may lead to another server.
        """
        connection = await self._connections.open()
        try:
            answer = await _response(connection, self._head("GET", path) + b"connection: close\r\n\r\n", b"")
            return answer.status, await answer.body(most_bytes)
        except AnswerTooLong:
            return connection.status, None
        finally:
            connection.close()

    def close(self) -> None:
        """Close idle connections, and keep no connections from now on."""
        self._connections.close()

    def _head(self, method: str, path: str) -> bytes:
        """Return the part of a head that all requests of a path share."""
        head = self._heads.get((method, path))
        if head is None:
            line = f"{method} {self._connections.path}{path} HTTP/1.1\r\n{self._headers}"
            head = self._heads[method, path] = line.encode("latin-1")
        return head


async def _response(connection: EngineConnection, head: bytes, body: bytes) -> EngineResponse:
    """Send a request, and return its answer once its head has arrived. Raises EngineGone."""
    await connection.send_request(head, body)
    return EngineResponse(
        connection.status, connection.content_type.startswith(EVENT_STREAM), connection.receive_body
    )
