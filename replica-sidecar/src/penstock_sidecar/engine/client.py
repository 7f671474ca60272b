"""The engine over HTTP. An answer's bytes are passed on untouched.

Every way in which an engine can be missing becomes `EngineGone`; an error status is an answer like any other.
"""

import contextlib
import errno
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import aiohttp
import orjson
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
"""Headers of every request. Answers are passed on untouched, so they must not be compressed."""

UNANSWERED = (aiohttp.ClientError, TimeoutError)
"""What a probe raises without a whole answer in time."""


class EngineGone(Exception):
    """No connection to the engine, or it broke."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(f"{type(cause).__name__}: {cause}")


class AnswerTooLong(Exception):
    """An answer that is held whole exceeds the bound."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The engine's response, its body still to come."""

    status: int
    streamed: bool
    body: AsyncIterator[bytes]

    async def whole(self, most_bytes: int) -> bytes:
        """Return the whole body. Raises AnswerTooLong."""
        body = await _within(most_bytes, self.body)
        if body is None:
            raise AnswerTooLong(f"the engine's answer is over the bound of {most_bytes} bytes")
        return body


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
        self._served, self._url = served, url.rstrip("/")
        self._urls = {endpoint: self._url + path for endpoint, path in PATHS.items()}
        headers = {**HEADERS, **bearer(api_key)}
        self._answers = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=bounds.requests, keepalive_timeout=bounds.idle_connection_s),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=bounds.connect_s),
            headers={**headers, "content-type": "application/json"},
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        self._probes = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True),  # a connection may be to an engine that is gone
            timeout=aiohttp.ClientTimeout(total=bounds.probe_timeout_s),
            headers=headers,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._answers.close()
        await self._probes.close()

    @contextlib.asynccontextmanager
    async def answer(
        self, endpoint: wire.Endpoint.ValueType, body: bytes, request_id: str
    ) -> AsyncIterator[Answer]:
        """Send a body. The answer is closed with the block. Raises EngineGone, from within the block too."""
        url, headers = self._urls[endpoint], {"x-request-id": request_id}
        try:
            async with self._answers.post(url, data=body, headers=headers, allow_redirects=False) as response:
                streamed = response.headers.get("content-type", "").startswith(EVENT_STREAM)
                yield Answer(response.status, streamed, response.content.iter_any())
        except aiohttp.ClientError as error:
            raise EngineGone(error) from error

    async def load(self) -> EngineLoad | None:
        """Return the engine's load by its own metrics; None where it does not tell."""
        try:
            async with self._page("/metrics") as response:
                page = await _within(MOST_BYTES, response.content.iter_any())
        except UNANSWERED:
            return None
        return load_of(page) if response.status == 200 and page is not None else None

    async def probe(self) -> Probe:
        """Ask the engine for its health and its model."""
        try:
            async with self._page("/health") as health:
                if health.status != 200:
                    return Probe(ready=False, cause=f"/health answers {health.status}")
            async with self._page("/v1/models") as models:
                return self._judged(models.status, await _within(MOST_BYTES, models.content.iter_any()))
        except UNANSWERED as error:
            refused = isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
            return Probe(ready=False, refused=refused, late=not refused, cause=str(EngineGone(error)))

    def _page(self, path: str) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Return one of the engine's own pages. A redirect is not followed: it leads to somebody else's."""
        return self._probes.get(self._url + path, allow_redirects=False)

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


async def _within(most_bytes: int, body: AsyncIterator[bytes]) -> bytes | None:
    """Return a whole body; None where it is longer."""
    parts, size = [], 0
    async for data in body:
        parts.append(data)
        size += len(data)
        if size > most_bytes:
            return None
    return b"".join(parts)


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
