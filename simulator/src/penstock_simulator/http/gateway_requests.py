"""Requests of gateways at the engine's own port: the sidecar is asked about each, as by vLLM's plug-in.

An accepted request gets a ticket, and the engine answers it. For any other the sidecar's response is sent.
Pages for probes and metrics are served without asking, as are requests of sidecars and routers, which were
decided before.
"""

import asyncio
from dataclasses import dataclass

from penstock_proto.engine_calls import DECIDED, Header, Proceed, Reply, decided_body
from penstock_proto.sidecar_calls import SidecarAway, SidecarCall, SidecarCalls
from penstock_runtime.gateway_headers import REJECTED
from penstock_runtime.http_request import ClientGone, HttpRequest
from penstock_runtime.openai_errors import ApiError

from penstock_simulator.http.answer_watch import AnswerWatch
from penstock_simulator.http.api import EngineApi

OPEN_PAGES = frozenset({"/health", "/metrics", "/version"})

_DECIDED = DECIDED.encode()
_FRAMING = frozenset({b"content-length", b"content-type"})
"""Headers that `HttpRequest.answer` writes itself."""


@dataclass(frozen=True, slots=True)
class GatewayRequests:
    """An engine's API behind a gateway. max_body_bytes: bound on a body."""

    api: EngineApi
    calls: SidecarCalls
    max_body_bytes: int

    async def __call__(self, http: HttpRequest) -> None:
        """Serve one request. Raises ApiError, ClientGone."""
        if http.path in OPEN_PAGES or any(name == _DECIDED for name, _ in http.headers):
            await self.api(http)
            return
        body = await http.body(self.max_body_bytes)
        try:
            call = self.calls.begin(http.method, http.path, http.headers, body)
        except SidecarAway:
            raise _away() from None
        try:
            await self._serve(http, body, call)
        except SidecarAway:
            raise _away() from None
        finally:
            call.client_gone()  # unless it has ended

    async def _serve(self, http: HttpRequest, body: bytes, call: SidecarCall) -> None:
        """Serve a request until it is answered, the client has disconnected, or the sidecar ends it."""
        stopped = asyncio.timeout(None)

        def stop() -> None:
            stopped.reschedule(0.0)

        def stop_by_sidecar() -> None:
            begun_before = http.started and call.reply is not None and call.reply.hops
            if not begun_before:
                stop()

        http.on_gone, call.on_reply = stop, stop_by_sidecar
        try:
            async with stopped:
                decision = await call.decision()
                if isinstance(decision, Reply):
                    await _answer(http, decision)
                elif decision is not None:
                    await self._accepted(http, body, call, decision)
        except TimeoutError:
            if call.reply is None or not stopped.expired():
                raise ClientGone from None
            if http.started:
                await http.end(b"data: " + call.reply.body + b"\n\n")
            else:
                await _answer(http, call.reply)

    async def _accepted(self, http: HttpRequest, body: bytes, call: SidecarCall, decision: Proceed) -> None:
        http.headers = _headers(http.headers, decision.request_id, self.api.api_key)
        http.feed(decided_body(body, decision))
        try:
            await self.api(http, AnswerWatch(call, decision.headers))
        except ApiError as error:
            reply = await call.refused(error.status, error.body())
            if reply is None:
                raise
            await _answer(http, reply)


def _headers(given: list[Header], request_id: str, api_key: str) -> list[Header]:
    """Return the request's headers for the engine, with its own key and the sidecar's id of the request."""
    own = [(b"x-request-id", request_id.encode())]
    if api_key:
        own.append((b"authorization", f"Bearer {api_key}".encode()))
    return [*own, *(pair for pair in given if pair[0] not in (b"x-request-id", b"authorization"))]


async def _answer(http: HttpRequest, reply: Reply) -> None:
    headers = [pair for pair in reply.headers if pair[0] not in _FRAMING]
    await http.answer(reply.body, reply.status, headers=headers)


def _away() -> ApiError:
    return ApiError(
        503,
        "the sidecar of this replica does not answer",
        type="no_replicas",
        code="no_replicas",
        headers=((REJECTED, "1"), ("retry-after", "1")),
    )
