"""The replica's HTTP interface: paths, and the format of errors.

Only a gateway reaches it. Every generating request is submitted to the replica's admission; there is no other
path to the engine.
"""

import time

import orjson
from penstock_routing.applications.tier_selection import unknown_model
from penstock_routing.request import request_head
from penstock_routing.request.generation_request import GENERATES
from penstock_routing.response.error_answers import ErrorAnswers
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError

from penstock_sidecar.http.engine_call import EngineCall
from penstock_sidecar.http.intake import HttpAttempt
from penstock_sidecar.http.request_path import HttpRequestPath
from penstock_sidecar.replica.serving import ServiceState
from penstock_sidecar.requests.faults import Faults

MODELS = "/v1/models"


class HttpApp:
    """The HTTP application of one replica. model: served name of the model. engine: type of the engine."""

    def __init__(
        self, model: str, engine: str, state: ServiceState, request_path: HttpRequestPath, faults: Faults
    ) -> None:
        self._model, self._engine, self._state = model, engine, state
        self._request_path, self._faults = request_path, faults
        self._started_s = int(time.time())

    async def at_engine(self, call: EngineCall) -> None:
        """Answer one request that has reached the engine's port, or let the engine answer it."""
        await self(call.http, call)

    async def __call__(self, http: HttpRequest, at_engine: EngineCall | None = None) -> None:
        """Answer one request. Every error has the request's id."""
        head = request_head.head_of(http.headers)
        request_id = request_head.request_id(head)
        async with ErrorAnswers(http, request_id, lambda: self._faults.count("http", None)):
            endpoint = GENERATES.get(http.path)
            if endpoint is not None and http.method == "POST":
                await self._request_path.serve(HttpAttempt(http, head, endpoint, request_id, at_engine))
            else:
                await http.answer(self._page(http, endpoint is not None))

    def _page(self, http: HttpRequest, generates: bool) -> bytes:
        """Return the body of a page. Raises ApiError."""
        path, allowed = http.path[:256], "POST" if generates else "GET, HEAD"
        name = path.removeprefix(f"{MODELS}/")
        pages = {MODELS: self._models, "/health": self._health, "/ready": self._ready}
        page = pages.get(path)
        if page is None and name == path and not generates:
            raise ApiError(404, f"no such path: {path}", code="not_found")
        if generates or http.method not in ("GET", "HEAD"):
            raise ApiError(
                405,
                f"{path} takes {allowed}, not {http.method[:32]}",
                code="method_not_allowed",
                headers=(("allow", allowed),),
            )
        return self._one_model(name) if page is None else page()

    def _models(self) -> bytes:
        return orjson.dumps({"object": "list", "data": [self._entry()]})

    def _one_model(self, name: str) -> bytes:
        if name != self._model:
            raise unknown_model(name, self._model)
        return orjson.dumps(self._entry())

    def _health(self) -> bytes:
        return b'{"status":"ok"}'

    def _ready(self) -> bytes:
        if not self._state.serves:
            raise ApiError(503, "the replica takes no requests now", type="server_error", code="not_ready")
        return b'{"status":"ready"}'

    def _entry(self) -> dict[str, object]:
        """Return the model in OpenAI's format with fields of Penstock."""
        return {
            "id": self._model,
            "object": "model",
            "created": self._started_s,
            "owned_by": "penstock",
            "engine": self._engine,
            "max_model_len": self._state.max_model_len,
        }
