"""HTTP client of the engine. The bytes of an answer are forwarded unchanged.

Every connection failure becomes `EngineGone`; an error status is an answer like any other.
"""

import asyncio
import contextlib
import errno
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson
from penstock_proto import replica_pb2 as wire
from penstock_runtime.engine_key import VARIABLE, bearer

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.connection import EngineConnection, EngineGone, Receive
from penstock_sidecar.engine.connections import EngineConnections
from penstock_sidecar.engine.metrics import MOST_BYTES, EngineLoad, load_of

PATHS: dict[wire.Endpoint.ValueType, str] = {
    wire.ENDPOINT_CHAT_COMPLETIONS: "/v1/chat/completions",
    wire.ENDPOINT_COMPLETIONS: "/v1/completions",
}

EVENT_STREAM = b"text/event-stream"

HEADERS = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "penstock-sidecar"}
"""Headers of every request. Answers are passed on untouched, so they must not be compressed."""

UNANSWERED = (EngineGone, TimeoutError)
"""What a probe raises without a whole answer in time."""


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


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one probe.

    refused: the connection was refused.
    late: no whole answer came in time.
    cause: why the engine is not ready, for the log.
    max_model_len: tokens of the model's context; 0 if unknown.
    """

    ready: bool
    refused: bool = False
    late: bool = False
    cause: str = ""
    max_model_len: int = 0


class EngineClient:
    """Connections to one engine.

    api_key: the engine's; empty without one.
    served: name of the model that it must serve; empty for any.
    takes_stream_options: False once it has refused a body for `stream_options` that the sidecar had added.
    """

    takes_stream_options = True

    def __init__(self, url: str, bounds: Bounds, served: str = "", api_key: str = "") -> None:
        self._served, self._bounds = served, bounds
        self._connections = EngineConnections(url, bounds.connect_s, bounds.idle_connection_s)
        headers = {"host": self._connections.authority, **HEADERS, **bearer(api_key)}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._heads = {endpoint: self._head("POST", path) for endpoint, path in PATHS.items()}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connections.close()

    @contextlib.asynccontextmanager
    async def answer(
        self, endpoint: wire.Endpoint.ValueType, body: bytes, request_id: str
    ) -> AsyncIterator[EngineResponse]:
        """Send a body. The answer is closed with the block. Raises EngineGone, from within the block too."""
        own = f"content-type: application/json\r\ncontent-length: {len(body)}\r\nx-request-id: {request_id}"
        connection = await self._connections.take()
        try:
            yield await _asked(connection, self._heads[endpoint] + own.encode() + b"\r\n\r\n", body)
        finally:
            self._connections.give_back(connection)

    async def load(self) -> EngineLoad | None:
        """Return the engine's load by its own metrics; None where it does not tell."""
        try:
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                status, page = await self._page("/metrics")
        except UNANSWERED:
            return None
        return load_of(page) if status == 200 and page is not None else None

    async def probe(self) -> Probe:
        """Ask the engine for its health and its model."""
        try:
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                status, _ = await self._page("/health")
            if status != 200:
                return Probe(ready=False, cause=f"/health answers {status}")
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                return self._judged(*await self._page("/v1/models"))
        except UNANSWERED as error:
            cause = error.__cause__
            refused = isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED
            message = str(error) if isinstance(error, EngineGone) else str(EngineGone(error))
            return Probe(ready=False, refused=refused, late=not refused, cause=message)

    async def _page(self, path: str) -> tuple[int, bytes | None]:
        """Return the status and the body of one of the engine's own pages; None for a body over the bound.

        Each has a connection of its own: one that was kept may be to an engine that is gone. A redirect is
        not followed: it leads to somebody else's.
        """
        connection = await self._connections.open()
        try:
            answer = await _asked(connection, self._head("GET", path) + b"connection: close\r\n\r\n", b"")
            return answer.status, await answer.whole(MOST_BYTES)
        except AnswerTooLong:
            return connection.status, None
        finally:
            connection.close()

    def _head(self, method: str, path: str) -> bytes:
        """Return the part of a head that all requests of a path share."""
        return f"{method} {self._connections.path}{path} HTTP/1.1\r\n{self._headers}".encode("latin-1")

    def _judged(self, status: int, models: bytes | None) -> Probe:
        """Return the probe's result by the engine's list of models; None is one over the bound."""
        if status == 401:
            return Probe(ready=False, cause=f"it requires another API key: set {VARIABLE}")
        if status != 200:
            return Probe(ready=False, cause=f"/v1/models answers {status}")
        if models is None:
            return Probe(ready=False, cause=f"/v1/models is over {MOST_BYTES} bytes")
        cards = _cards(models)
        if other := other_model(cards, self._served):
            return Probe(ready=False, cause=other)
        return Probe(ready=True, max_model_len=_max_model_len(cards))


async def _asked(connection: EngineConnection, head: bytes, body: bytes) -> EngineResponse:
    """Send a request, and return its answer once its head has come. Raises EngineGone."""
    await connection.ask(head, body)
    return EngineResponse(
        connection.status, connection.content_type.startswith(EVENT_STREAM), connection.each
    )


def other_model(cards: Sequence[Mapping[str, Any]], served: str) -> str:
    """Return what is wrong where vLLM does not serve this model and would answer 404; else an empty string.

    Other engines are not checked: some serve what they do not list, or list what they could load.
    """
    names = [str(card.get("id")) for card in cards if card.get("owned_by") == "vllm"]
    if not served or not names or served in names:
        return ""
    return (
        f'the engine serves "{", ".join(names)}", this pool "{served}": '
        f"start it with --served-model-name {served}, or correct spec.model.name"
    )


def _cards(models: bytes) -> list[Mapping[str, Any]]:
    """Return an engine's list of models; empty where the answer has none."""
    try:
        return [card for card in orjson.loads(models)["data"] if isinstance(card, dict)]
    except (ValueError, LookupError, TypeError):
        return []


def _max_model_len(cards: Sequence[Mapping[str, Any]]) -> int:
    """Return vLLM's own field of a model's card; 0 in other engines."""
    lengths = [card.get("max_model_len") for card in cards]
    return max([length for length in lengths if isinstance(length, int)], default=0)
