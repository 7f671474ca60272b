"""The sidecar's client of its engine: requests, probes and load."""

import asyncio
import errno
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import orjson
from penstock_proto import replica_pb2 as wire
from penstock_runtime.client_tls import Contexts
from penstock_runtime.engine.connection import EngineGone
from penstock_runtime.engine.http_client import AnswerTooLong, EngineHttp, EngineResponse
from penstock_runtime.engine_key import VARIABLE

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.metrics import MOST_BYTES, EngineLoad, load_of

AGENT = "penstock-sidecar"

PATHS: dict[wire.Endpoint.ValueType, str] = {
    wire.ENDPOINT_CHAT_COMPLETIONS: "/v1/chat/completions",
    wire.ENDPOINT_COMPLETIONS: "/v1/completions",
}

UNANSWERED = (EngineGone, TimeoutError)
"""Errors of a request without a complete response in time."""


@dataclass(frozen=True, slots=True)
class Probe:
    """The result of one probe.

    refused: the connection was refused.
    late: no complete response was received in time.
    cause: reason why the engine is not ready, for the log.
    max_model_len: tokens of the model's context; 0 if unknown.
    """

    ready: bool
    refused: bool = False
    late: bool = False
    cause: str = ""
    max_model_len: int = 0


class EngineClient:
    """Connections to one engine.

    api_key: the engine's API key; empty if it has none.
    tls: for an engine with https; None to trust this machine's CA certificates.
    served: name of the model that it must serve; empty for any.
    takes_stream_options: False once it has rejected a body because of `stream_options` of the sidecar.
    takes_token_ids: False once it has rejected a body because of `return_token_ids` of a router.
    """

    takes_stream_options = takes_token_ids = True

    def __init__(
        self, url: str, bounds: Bounds, served: str = "", api_key: str = "", tls: Contexts | None = None
    ) -> None:
        self._served, self._bounds = served, bounds
        self._http = EngineHttp(url, AGENT, api_key=api_key, connect_s=bounds.connect_s, tls=tls)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.close()

    def answer(
        self, endpoint: wire.Endpoint.ValueType, body: bytes, request_id: str
    ) -> AbstractAsyncContextManager[EngineResponse]:
        """Send a body. The answer is closed with the block. Raises EngineGone, also within the block."""
        return self._http.post(PATHS[endpoint], body, request_id)

    async def load(self) -> EngineLoad | None:
        """Return the engine's load by its own metrics; None if it does not report it."""
        try:
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                status, page = await self._http.page("/metrics", MOST_BYTES)
        except UNANSWERED:
            return None
        return load_of(page) if status == 200 and page is not None else None

    async def detokenize(self, tokens: Sequence[int]) -> str | None:
        """Return the text of tokens; None if the engine does not return it."""
        body = orjson.dumps({"tokens": list(tokens)} | ({"model": self._served} if self._served else {}))
        try:
            async with (
                asyncio.timeout(self._bounds.probe_timeout_s),
                self._http.post("/detokenize", body, "detokenize") as answer,
            ):
                page = await answer.body(MOST_BYTES)
            text = orjson.loads(page)["prompt"] if answer.status == 200 else None
        except (*UNANSWERED, AnswerTooLong, ValueError, LookupError, TypeError):
            return None
        return text if isinstance(text, str) else None

    async def probe(self) -> Probe:
        """Query the engine's health and model."""
        try:
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                status, _ = await self._http.page("/health", MOST_BYTES)
            if status != 200:
                return Probe(ready=False, cause=f"/health answers {status}")
            async with asyncio.timeout(self._bounds.probe_timeout_s):
                return self._check_models(*await self._http.page("/v1/models", MOST_BYTES))
        except UNANSWERED as error:
            cause = error.__cause__
            refused = isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED
            message = str(error) if isinstance(error, EngineGone) else str(EngineGone(error))
            return Probe(ready=False, refused=refused, late=not refused, cause=message)

    def _check_models(self, status: int, models: bytes | None) -> Probe:
        """Return the probe's result by the engine's list of models. models: None if it is too long."""
        if status == 401:
            return Probe(ready=False, cause=f"it requires another API key: set {VARIABLE}")
        if status != 200:
            return Probe(ready=False, cause=f"/v1/models answers {status}")
        if models is None:
            return Probe(ready=False, cause=f"/v1/models is over {MOST_BYTES} bytes")
        cards = _cards(models)
        if mismatch := model_mismatch(cards, self._served):
            return Probe(ready=False, cause=mismatch)
        return Probe(ready=True, max_model_len=_max_model_len(cards))


def model_mismatch(cards: Sequence[Mapping[str, Any]], served: str) -> str:
    """Return an error if vLLM does not serve this model and would answer 404; else an empty string.

    Other engines are not checked: some serve models that they do not list, or list models that they could
    load.
    """
    names = [str(card.get("id")) for card in cards if card.get("owned_by") == "vllm"]
    if not served or not names or served in names:
        return ""
    return (
        f'the engine serves "{", ".join(names)}", this pool "{served}": '
        f"start it with --served-model-name {served}, or correct spec.model.name"
    )


def _cards(models: bytes) -> list[Mapping[str, Any]]:
    """Return an engine's list of models; empty if the response has none."""
    try:
        return [card for card in orjson.loads(models)["data"] if isinstance(card, dict)]
    except (ValueError, LookupError, TypeError):
        return []


def _max_model_len(cards: Sequence[Mapping[str, Any]]) -> int:
    """Return the context length, which vLLM has in a model's card; 0 for other engines."""
    lengths = [card.get("max_model_len") for card in cards]
    return max([length for length in lengths if isinstance(length, int)], default=0)
