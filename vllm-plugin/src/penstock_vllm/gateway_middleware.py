"""Lets gateways send requests to vLLM's own port, without bypassing admission.

    --middleware penstock_vllm.gateway_middleware.SidecarAdmission

    gateway ─request─▶ vLLM's API server ─Call───▶ sidecar
            ◀─answer──                   ◀─verdict─

This ASGI middleware asks the sidecar about every request (`penstock_proto.engine_calls`). An accepted one
gets a ticket and is served by vLLM, so its tokens pass no other process; for any other the sidecar's response
is sent, such as a rejection, after which the gateway tries the next replica. Pages for the kubelet and for
Prometheus are served without asking, as are requests of sidecars and routers, which were decided before: the
scheduler serves those without a valid ticket as best effort (`tickets`).

The middleware is the outermost application, before vLLM checks API keys. A gateway's requests have the key of
an application, which the gateway has checked; vLLM's own key replaces it.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from penstock_core.domain.engine_fields import engine_calls_socket
from penstock_proto.engine_calls import (
    DECIDED,
    LONGEST_BYTES,
    REJECTED,
    Header,
    Proceed,
    Reply,
    decided_body,
)
from penstock_proto.sidecar_calls import SidecarAway, SidecarCall, SidecarCalls

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Mapping[str, Any], Receive, Send], Awaitable[None]]

OPEN_PAGES = frozenset({"/health", "/metrics", "/ping", "/version"})
"""Pages that anybody may read."""

LONGEST_BODY = LONGEST_BYTES - (8 << 20)
"""Longest body that is buffered; the rest of a message is for headers. Gateways have a lower bound."""

BODY_S = 30.0
"""Longest wait for a body."""

OK = 200

LONGEST_REFUSAL = 1 << 20
"""Longest error of vLLM that is passed to the sidecar."""

AWAY = Reply(
    0,
    503,
    [(b"content-type", b"application/json"), (b"retry-after", b"1"), (REJECTED, b"1")],
    b'{"error":{"message":"the sidecar of this replica does not answer","type":"no_replicas","param":null,'
    b'"code":"no_replicas"}}',
)
"""Response without a sidecar: the gateway tries the next replica."""

_DECIDED, _EVENT_STREAM = DECIDED.encode(), b"text/event-stream"


class SidecarAdmission:
    """The middleware, in vLLM's API server. environment: has the plug-in's and vLLM's variables."""

    def __init__(self, app: App, environment: Mapping[str, str] = os.environ) -> None:
        self._app = app
        telemetry, key = environment.get("PENSTOCK_TELEMETRY"), environment.get("VLLM_API_KEY")
        if not telemetry:
            raise ValueError("PENSTOCK_TELEMETRY is not set: the sidecar's sockets are there")
        self._calls = SidecarCalls(Path(engine_calls_socket(telemetry)))
        self._authorization = None if not key else (b"authorization", f"Bearer {key}".encode())

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request, or the application's lifespan."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif _is_open(scope):
            await self._app(scope, receive, send)
        else:
            await self._ask(scope, receive, send)

    async def _live(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Stay connected to the sidecar while the application lives."""
        connecting = asyncio.create_task(self._calls.run())
        try:
            await self._app(scope, receive, send)
        finally:
            connecting.cancel()

    async def _ask(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(BODY_S):
                body = await _body(receive)
        except TimeoutError:
            return await _send_reply(send, _error(408, f"the body did not arrive within {BODY_S:g} s"))
        if body is None:
            return None
        if len(body) > LONGEST_BODY:
            return await _send_reply(send, _error(413, f"the body is over {LONGEST_BODY} bytes"))
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        try:
            call = self._calls.begin(scope["method"], scope["path"], headers, body)
        except SidecarAway:
            return await _send_reply(send, AWAY)
        leaving = asyncio.ensure_future(receive())  # the next message is that the client has disconnected
        try:
            decision = await call.decision(leaving)
            if isinstance(decision, Reply):
                await _send_reply(send, decision)
            elif decision is not None:
                answer = _Answer(call, decision, decided_body(body, decision), leaving, send)
                await answer.serve(self._app, {**scope, "headers": self._headers(headers, decision)})
        except SidecarAway:
            await _send_reply(send, AWAY)
        finally:
            leaving.cancel()
            call.client_gone()  # unless it has ended

    def _headers(self, headers: list[Header], decision: Proceed) -> list[Header]:
        """Return the request's headers for vLLM, with its own key and the sidecar's id of the request."""
        replaced = {b"x-request-id", b"authorization", b"content-length", b"transfer-encoding"}
        own = [(b"x-request-id", decision.request_id.encode())]
        if self._authorization is not None:
            own.append(self._authorization)
        return [*own, *(pair for pair in headers if pair[0] not in replaced)]


class _Answer:
    """An accepted request at vLLM's application: gives it the body, and reports the answer that it writes.

    vLLM starts the response to a streamed request before its first token. It is sent with the first token,
    because until then the sidecar may return the request, and the gateway tries the next replica.
    """

    def __init__(
        self, call: SidecarCall, decision: Proceed, body: bytes, leaving: asyncio.Future[Message], send: Send
    ) -> None:
        self._call, self._decision, self._leaving, self._send = call, decision, leaving, send
        self._body: bytes | None = body
        self._status, self._streams = 0, False
        self._parts: list[bytes] = []
        self._head: Message | None = None  # the start of a response, until its first bytes
        self._begun = self._complete = False

    async def serve(self, app: App, scope: Mapping[str, Any]) -> None:
        """Serve the request until vLLM has answered, the client has disconnected, or the sidecar ends it."""
        stopped = asyncio.timeout(None)

        def stop() -> None:
            reply = self._call.reply
            if reply is not None and not (self._begun and reply.hops):  # begun before the sidecar knew
                stopped.reschedule(0.0)

        self._call.on_reply = stop
        try:
            async with stopped:
                await app(scope, self._receive, self._write)
        except TimeoutError:
            if self._call.reply is None or not stopped.expired():  # vLLM's own
                raise
            await self._replace(self._call.reply)
        finally:
            self._call.on_reply = None
            if not self._complete and not self._leaving.done():
                self._call.cut()

    async def _receive(self) -> Message:
        body, self._body = self._body, None
        if body is not None:
            return {"type": "http.request", "body": body, "more_body": False}
        return await asyncio.shield(self._leaving)

    async def _write(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            headers = [*self._decision.headers, *message.get("headers", ())]
            self._streams = any(
                name.lower() == b"content-type" and value.startswith(_EVENT_STREAM) for name, value in headers
            )
            self._head = {**message, "headers": headers}
        elif self._status != OK:
            await self._refused(message)
        elif message["type"] == "http.response.body":
            head, self._head = self._head, None
            if head is not None:
                self._begun = True
                await self._send(head)
            await self._send(message)
            self._wrote(message.get("body", b""), more=message.get("more_body", False))

    def _wrote(self, data: bytes, *, more: bool) -> None:
        self._complete = not more
        if not self._streams:
            self._parts.append(data)
            if not more:
                self._call.answered(b"".join(self._parts))
            return
        if data:
            self._call.wrote(data)
        if not more:
            self._call.stream_ended()

    async def _refused(self, message: Message) -> None:
        """Report vLLM's error, and send the sidecar's response to it."""
        self._parts.append(message.get("body", b""))
        if message.get("more_body", False):
            return
        body = b"".join(self._parts)
        reply = await self._call.refused(self._status, body[:LONGEST_REFUSAL])
        self._complete = True
        await _send_reply(self._send, reply or _json(self._status, body))

    async def _replace(self, reply: Reply) -> None:
        """Send the sidecar's response, as the last event of a stream that has begun."""
        if not self._begun:
            await _send_reply(self._send, reply)
        elif self._streams and not self._complete:
            event = b"data: " + reply.body + b"\n\n"
            await self._send({"type": "http.response.body", "body": event, "more_body": False})
        self._complete = True


def _is_open(scope: Mapping[str, Any]) -> bool:
    """Return whether a request is served without asking."""
    if scope["method"] in ("GET", "HEAD") and scope["path"] in OPEN_PAGES:
        return True
    return any(name.lower() == _DECIDED for name, _ in scope["headers"])


async def _body(receive: Receive) -> bytes | None:
    """Return the body, or a part of it that is over the bound; None if the client has disconnected."""
    parts, size = list[bytes](), 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if not message.get("more_body", False) or size > LONGEST_BODY:
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _send_reply(send: Send, reply: Reply) -> None:
    await send({"type": "http.response.start", "status": reply.status, "headers": list(reply.headers)})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


def _error(status: int, text: str) -> Reply:
    return _json(status, b'{"error":{"message":"%b","type":"invalid_request_error"}}' % text.encode())


def _json(status: int, body: bytes) -> Reply:
    return Reply(0, status, [(b"content-type", b"application/json")], body)
