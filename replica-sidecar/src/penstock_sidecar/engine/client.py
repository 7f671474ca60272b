"""The engine, over HTTP: one answer at a time, its bytes untouched.

httpx's interface on aiohttp's transport, which reads a chunk in a third of the time of httpx's own. Answers
are asked of the transport itself: they need nothing of what httpx's client does (redirects, cookies, joined
URLs), and it takes longer than the transport. Every way in which an engine can be missing becomes
`EngineGone`; an error status is an answer like any other.
"""

import contextlib
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx
from httpx_aiohttp import AiohttpTransport
from penstock_proto import replica_pb2 as wire
from penstock_runtime.engine_key import VARIABLE, bearer

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.metrics import MOST_BYTES, EngineLoad, load_of

PATHS: dict[wire.Endpoint.ValueType, str] = {
    wire.ENDPOINT_CHAT_COMPLETIONS: "/v1/chat/completions",
    wire.ENDPOINT_COMPLETIONS: "/v1/completions",
}

EVENT_STREAM = "text/event-stream"


HEADERS = {"accept-encoding": "identity", "user-agent": "penstock-sidecar"}
"""Sent with everything. Bytes are passed on as they come, so they must not come compressed."""


class EngineGone(Exception):
    """No connection to the engine, or it broke."""

    def __init__(self, cause: Exception) -> None:
        told = cause.__cause__ or cause  # the transport's own word is truer than httpx's
        super().__init__(f"{type(told).__name__}: {told}")


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
    """What the engine said when asked.

    refused: nobody listens there.
    late: no answer in time, or none that was whole.
    cause: why it is not ready, for people.
    max_model_len: 0 where it did not tell.
    """

    ready: bool
    refused: bool = False
    late: bool = False
    cause: str = ""
    max_model_len: int = 0


class EngineClient:
    """Connections to one engine.

    api_key: the engine's, empty where it takes anybody's requests.
    served: the model that it has to serve; empty: whatever it does.
    takes_stream_options: whether it has not refused a body for `stream_options` that its client did not send.
    """

    takes_stream_options = True

    def __init__(self, url: str, bounds: Bounds, served: str = "", api_key: str = "") -> None:
        self._served = served
        self._headers = {**HEADERS, **bearer(api_key)}
        self._urls = {endpoint: httpx.URL(url.rstrip("/") + path) for endpoint, path in PATHS.items()}
        self._timeout = {"timeout": httpx.Timeout(None, connect=bounds.connect_s).as_dict()}
        self._answers = AiohttpTransport(
            limits=httpx.Limits(max_connections=bounds.carried, keepalive_expiry=bounds.idle_connection_s)
        )
        self._probes = httpx.AsyncClient(
            base_url=url,
            # a connection for each: one that is there may be to an engine that is gone
            transport=AiohttpTransport(limits=httpx.Limits(max_connections=2, keepalive_expiry=0)),
            timeout=httpx.Timeout(bounds.probe_timeout_s),
            headers=self._headers,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._answers.aclose()
        await self._probes.aclose()

    @contextlib.asynccontextmanager
    async def answer(
        self, endpoint: wire.Endpoint.ValueType, body: bytes, request_id: str
    ) -> AsyncIterator[Answer]:
        """Send a body; the answer closes with the block, whole or not. Raises EngineGone, inside too."""
        headers = {**self._headers, "content-type": "application/json", "x-request-id": request_id}
        request = httpx.Request(
            "POST", self._urls[endpoint], headers=headers, content=body, extensions=self._timeout
        )
        try:
            response = await self._answers.handle_async_request(request)
            try:
                streamed = response.headers.get("content-type", "").startswith(EVENT_STREAM)
                stream = response.stream
                assert isinstance(stream, httpx.AsyncByteStream)
                yield Answer(response.status_code, streamed, stream)
            finally:
                await response.aclose()
        except httpx.TransportError as error:
            raise EngineGone(error) from error

    async def load(self) -> EngineLoad | None:
        """What the engine says of its load; None where it does not."""
        try:
            async with self._probes.stream("GET", "/metrics") as response:
                if response.status_code != 200:
                    return None
                page = b""
                async for data in response.aiter_raw():
                    page += data
                    if len(page) > MOST_BYTES:
                        return None
                return load_of(page)
        except httpx.TransportError:
            return None

    async def probe(self) -> Probe:
        """Ask the engine whether it serves, and how long a context its model has."""
        try:
            health = await self._probes.get("/health")
            if health.status_code != 200:
                return Probe(ready=False, cause=f"/health answers {health.status_code}")
            models = await self._probes.get("/v1/models")
            if models.status_code == 401:
                return Probe(ready=False, cause=f"it wants another API key: set {VARIABLE}")
            if models.status_code != 200:
                return Probe(ready=False, cause=f"/v1/models answers {models.status_code}")
            cards = _cards(models)
            if other := other_model(cards, self._served):
                return Probe(ready=False, cause=other)
            return Probe(ready=True, max_model_len=_max_model_len(cards))
        except httpx.TransportError as error:
            refused = _refused(error)
            return Probe(ready=False, refused=refused, late=not refused, cause=str(EngineGone(error)))


def _refused(error: httpx.TransportError) -> bool:
    """Whether nobody listens there. The transport calls that a timeout, and keeps the truth as the cause."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ECONNREFUSED


def other_model(cards: Sequence[Mapping[str, Any]], served: str) -> str:
    """What is wrong where vLLM serves other models than this one, and would answer 404; else empty.

    Other engines are believed: some serve what they do not list, or list what they could load.
    """
    names = [str(card.get("id")) for card in cards if card.get("owned_by") == "vllm"]
    if not served or not names or served in names:
        return ""
    return (
        f'the engine serves "{", ".join(names)}", this pool "{served}": '
        f"start it with --served-model-name {served}, or correct spec.model.name"
    )


def _cards(models: httpx.Response) -> list[Mapping[str, Any]]:
    """What an engine says of its models; none where that is no answer."""
    try:
        return [card for card in models.json()["data"] if isinstance(card, dict)]
    except (ValueError, LookupError, TypeError):
        return []


def _max_model_len(cards: Sequence[Mapping[str, Any]]) -> int:
    """vLLM's own field of a model's card; other engines do not tell."""
    told = [card.get("max_model_len") for card in cards]
    return max([length for length in told if isinstance(length, int)], default=0)
