"""The engine's HTTP API: OpenAI's endpoints and vLLM's own, as an application."""

import time
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Any

import orjson
from penstock_runtime.engine_key import carries
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from prometheus_client import CONTENT_TYPE_LATEST

from penstock_simulator.http.answer_watch import UNWATCHED, AnswerWatch
from penstock_simulator.http.completions import Completions
from penstock_simulator.http.json_fields import bad_field, read_object
from penstock_simulator.http.request_body import ApiEndpoint, check_model, prompt_ids
from penstock_simulator.http.synthetic_text import token_ids

Handler = Callable[[HttpRequest, AnswerWatch], Awaitable[None]]


class EngineApi:
    """The application of one engine.

    api_key: key that requests to `/v1` must carry, as in vLLM; "" requires none.
    """

    def __init__(self, completions: Completions, api_key: str = "") -> None:
        self._completions, self.api_key = completions, api_key
        self._created_s = int(time.time())
        self._routes: dict[str, tuple[str, Handler]] = {
            "/v1/chat/completions": ("POST", self._chat),
            "/v1/completions": ("POST", self._completion),
            "/tokenize": ("POST", self._tokenize),
            "/v1/models": ("GET", self._models),
            "/health": ("GET", self._health),
            "/version": ("GET", self._version),
            "/metrics": ("GET", self._metrics),
            "/reset_prefix_cache": ("POST", self._reset_prefix_cache),
        }

    async def __call__(self, request: HttpRequest, watch: AnswerWatch = UNWATCHED) -> None:
        """Serve one request. watch: follows a generated answer. Raises ApiError."""
        path = request.path
        route = self._routes.get(path)
        if route is None:
            raise ApiError(404, f"{path[:200]} does not exist", code="not_found")
        method, handler = route
        if request.method != method:
            raise ApiError(
                405, f"{path} takes {method}", code="method_not_allowed", headers=(("allow", method),)
            )
        if self.api_key and path.startswith("/v1") and not carries(dict(request.headers), self.api_key):
            raise ApiError(401, "missing or invalid API key", code="invalid_api_key")
        await handler(request, watch)

    async def _chat(self, request: HttpRequest, watch: AnswerWatch) -> None:
        await self._completions.serve(ApiEndpoint.CHAT, request, watch)

    async def _completion(self, request: HttpRequest, watch: AnswerWatch) -> None:
        await self._completions.serve(ApiEndpoint.COMPLETION, request, watch)

    async def _tokenize(self, request: HttpRequest, _: AnswerWatch) -> None:
        body = read_object(await request.body(self._completions.max_body_bytes))
        check_model(body, self._completions.model)
        tokens = _tokens(body)
        reply = {"count": len(tokens), "max_model_len": self._completions.max_model_len, "tokens": tokens}
        await request.answer(orjson.dumps(reply | {"token_strs": None}))

    async def _models(self, request: HttpRequest, _: AnswerWatch) -> None:
        model = {
            "id": self._completions.model,
            "object": "model",
            "created": self._created_s,
            "owned_by": "penstock",
            "root": self._completions.model,
            "parent": None,
            "max_model_len": self._completions.max_model_len,
        }
        await request.answer(orjson.dumps({"object": "list", "data": [model]}))

    async def _health(self, request: HttpRequest, _: AnswerWatch) -> None:
        await request.answer(b"")

    async def _version(self, request: HttpRequest, _: AnswerWatch) -> None:
        await request.answer(orjson.dumps({"version": version("penstock-simulator")}))

    async def _reset_prefix_cache(self, request: HttpRequest, _: AnswerWatch) -> None:
        """Empty the prefix cache, which fails while a request holds a block, as in vLLM."""
        success = self._completions.loop.state.reset_prefix_cache()
        await request.answer(orjson.dumps({"success": success}))

    async def _metrics(self, request: HttpRequest, _: AnswerWatch) -> None:
        await request.answer(self._completions.loop.metrics.text(), content_type=CONTENT_TYPE_LATEST.encode())


def _tokens(body: dict[str, Any]) -> list[int]:
    if body.get("messages") is not None:
        return prompt_ids(body, ApiEndpoint.CHAT)
    prompt = body.get("prompt")
    if not isinstance(prompt, str):
        raise bad_field("prompt", "must be a string; or give messages")
    return token_ids(prompt)
