"""The engine, over HTTP: one answer at a time, its bytes untouched.

httpx's interface on aiohttp's transport, which reads a chunk in a third of the time of httpx's own. Every way
in which an engine can be missing becomes `EngineGone`; an error status is an answer like any other.
"""

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import httpx
from httpx_aiohttp import AiohttpTransport
from penstock_proto import replica_pb2 as wire

from penstock_sidecar.bounds import Bounds

PATHS: dict[wire.Endpoint.ValueType, str] = {
    wire.ENDPOINT_CHAT_COMPLETIONS: "/v1/chat/completions",
    wire.ENDPOINT_COMPLETIONS: "/v1/completions",
}

EVENT_STREAM = "text/event-stream"


class EngineGone(Exception):
    """No connection to the engine, or it broke. `refused`: nobody listens there."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")
        self.refused = isinstance(cause, httpx.ConnectError)


class AnswerTooLong(Exception):
    """An answer that must be held whole is over the bound."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's response, its body still to come."""

    status: int
    streamed: bool
    body: httpx.AsyncByteStream

    async def whole(self, most_bytes: int) -> bytes:
        """The whole body. Raises AnswerTooLong."""
        parts, size = [], 0
        async for data in self.body:
            parts.append(data)
            size += len(data)
            if size > most_bytes:
                raise AnswerTooLong(f"the engine's answer is over the bound of {most_bytes} bytes")
        return b"".join(parts)


@dataclass(frozen=True, slots=True)
class Probe:
    """What the engine said when asked. max_model_len: 0 where it did not tell."""

    ready: bool
    refused: bool = False
    max_model_len: int = 0


class EngineClient:
    """Connections to one engine."""

    def __init__(self, url: str, bounds: Bounds) -> None:
        limits = httpx.Limits(
            max_connections=bounds.carried + 1,  # and the probe's
            max_keepalive_connections=None,
            keepalive_expiry=bounds.idle_connection_s,
        )
        self._probe_s = bounds.probe_timeout_s
        self._http = httpx.AsyncClient(
            base_url=url,
            transport=AiohttpTransport(limits=limits),
            timeout=httpx.Timeout(None, connect=bounds.connect_s),
            headers={"accept-encoding": "identity", "user-agent": "penstock-sidecar"},
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    @contextlib.asynccontextmanager
    async def answer(
        self, endpoint: wire.Endpoint.ValueType, body: bytes, request_id: str
    ) -> AsyncIterator[Answer]:
        """Send a body; the answer closes with the block, whole or not. Raises EngineGone, inside too."""
        headers = {"content-type": "application/json", "x-request-id": request_id}
        request = self._http.build_request("POST", PATHS[endpoint], content=body, headers=headers)
        try:
            response = await self._http.send(request, stream=True)
            try:
                streamed = response.headers.get("content-type", "").startswith(EVENT_STREAM)
                stream = response.stream
                assert isinstance(stream, httpx.AsyncByteStream)
                yield Answer(response.status_code, streamed, stream)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise EngineGone(error) from error

    async def probe(self) -> Probe:
        """Ask the engine whether it serves, and how long a context its model has."""
        timeout = httpx.Timeout(self._probe_s)
        try:
            health = await self._http.get("/health", timeout=timeout)
            if health.status_code != 200:
                return Probe(ready=False)
            models = await self._http.get("/v1/models", timeout=timeout)
            return Probe(models.status_code == 200, max_model_len=_max_model_len(models))
        except httpx.TransportError as error:
            return Probe(ready=False, refused=isinstance(error, httpx.ConnectError))


def _max_model_len(models: httpx.Response) -> int:
    """vLLM's own field of a model's card; other engines do not tell."""
    try:
        cards = models.json()["data"]
        return max(int(card.get("max_model_len") or 0) for card in cards)
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0
