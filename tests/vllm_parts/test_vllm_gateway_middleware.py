"""The middleware in vLLM's API server, with an application in vLLM's place and the sidecar's own socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import pytest
from patience import eventually
from penstock_core.domain.engine_fields import engine_calls_socket
from penstock_proto.engine_calls import DECIDED, Progress, Report
from penstock_runtime.openai_errors import ApiError
from penstock_sidecar.http.engine_call import EngineCall
from penstock_sidecar.http.engine_socket import ApiServers, engine_connections
from penstock_vllm import gateway_middleware
from penstock_vllm.gateway_middleware import App, Message, Receive, Send, SidecarAdmission

BODY = b'{"prompt":[1],"stream":true}'
FIELDS = b'{"penstock_ticket":"t"}'
TOKEN = b'data: {"choices":[{"index":0,"text":"a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
STREAM = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]

Decide = Callable[[EngineCall], Awaitable[None]]


async def accept(call: EngineCall) -> None:
    """Accept a request, and wait for its end."""
    body = await call.http.body(1 << 20)
    ended = asyncio.Event()
    reports: list[Report] = []

    def take(report: Report) -> None:
        reports.append(report)
        if report.progress is not Progress.BEGUN:
            ended.set()

    call.on_report, call.http.on_gone = take, ended.set
    call.proceed(
        body.rstrip()[:-1] + b',"vllm_xargs":' + FIELDS + b"}", "r1", [(b"x-penstock-verdict", b"admitted")]
    )
    Sidecar.reports = reports
    await ended.wait()
    call.completed()


async def reject(call: EngineCall) -> None:
    raise ApiError(429, "no", headers=(("x-penstock-rejected", "1"), ("retry-after", "7")))


class Sidecar:
    """The sidecar's end. decide: what it does with each request."""

    reports: ClassVar[list[Report]] = []

    def __init__(self) -> None:
        self.decide: Decide = accept
        self.calls: list[EngineCall] = []
        self.connections: ApiServers

    async def serve(self, call: EngineCall) -> None:
        self.calls.append(call)
        await self.decide(call)


class Client:
    """One request to the application, as a server of ASGI makes it."""

    def __init__(self, app: App, body: bytes, target: str, headers: list[tuple[bytes, bytes]]) -> None:
        method, path = target.split()
        self.scope = {"type": "http", "method": method, "path": path, "headers": headers}
        self.sent: list[Message] = []
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        half = len(body) // 2
        self._incoming.put_nowait({"type": "http.request", "body": body[:half], "more_body": True})
        self._incoming.put_nowait({"type": "http.request", "body": body[half:], "more_body": False})
        self.task = asyncio.ensure_future(app(self.scope, self._incoming.get, self._send))

    async def _send(self, message: Message) -> None:
        self.sent.append(message)

    def leave(self) -> None:
        self._incoming.put_nowait({"type": "http.disconnect"})

    @property
    def status(self) -> int:
        return int(self.sent[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.sent[0]["headers"])

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.sent[1:])


class Vllm:
    """An application in vLLM's place, which a test controls."""

    def __init__(self) -> None:
        self.scopes: list[Mapping[str, Any]] = []
        self.bodies: list[bytes] = []
        self.answers: Callable[[Receive, Send], Awaitable[None]] = self.stream
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await asyncio.Event().wait()
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        await self.answers(receive, send)

    async def stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        for data in (TOKEN, TOKEN, DONE):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def endless(self, receive: Receive, send: Send) -> None:
        """A stream that ends when its client leaves, as Starlette ends it."""
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
        assert (await receive())["type"] == "http.disconnect"

    async def until_told(self, receive: Receive, send: Send) -> None:
        """A stream whose end a test decides."""
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
        await self.go_on.wait()
        await send({"type": "http.response.body", "body": DONE, "more_body": False})

    async def waits_with_head(self, receive: Receive, send: Send) -> None:
        """A stream as vLLM starts it, before its first token."""
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await self.waits(receive, send)

    async def waits(self, receive: Receive, send: Send) -> None:
        await self.go_on.wait()

    def whole(self, body: bytes, status: int = 200) -> None:
        async def answer(receive: Receive, send: Send) -> None:
            await send({"type": "http.response.start", "status": status, "headers": JSON})
            await send({"type": "http.response.body", "body": body[:3], "more_body": True})
            await send({"type": "http.response.body", "body": body[3:]})

        self.answers = answer


class Server:
    """The middleware between clients and the application."""

    def __init__(self, vllm: Vllm, telemetry: Path) -> None:
        self.app = SidecarAdmission(vllm, {"PENSTOCK_TELEMETRY": str(telemetry), "VLLM_API_KEY": "secret"})
        self.living = asyncio.ensure_future(self.app({"type": "lifespan"}, self._nothing, self._ignore))

    def ask(self, body: bytes = BODY, /, target: str = "POST /v1/completions", **headers: str) -> Client:
        given = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        return Client(self.app, body, target, given)

    async def answered(
        self, body: bytes = BODY, /, target: str = "POST /v1/completions", **headers: str
    ) -> Client:
        client = self.ask(body, target, **headers)
        await client.task
        return client

    async def _nothing(self) -> Message:
        return await asyncio.Future()

    async def _ignore(self, message: Message) -> None: ...


@pytest.fixture
def vllm() -> Vllm:
    return Vllm()


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    made = Sidecar()
    path = Path(engine_calls_socket(str(tmp_path / "steps.sock")))
    async with engine_connections(path, made.serve) as made.connections:
        yield made


@pytest.fixture
async def server(vllm: Vllm, sidecar: Sidecar, tmp_path: Path) -> AsyncIterator[Server]:
    made = Server(vllm, tmp_path / "steps.sock")
    await eventually(lambda: bool(sidecar.connections))
    yield made
    made.living.cancel()
    with suppress(asyncio.CancelledError):
        await made.living


async def test_an_accepted_request_reaches_vllm_with_ticket_id_and_key(server: Server, vllm: Vllm) -> None:
    client = await server.answered(authorization="Bearer of-a-client", x_request_id="mine", accept="*/*")
    assert json.loads(vllm.bodies[0]) == {**json.loads(BODY), "vllm_xargs": json.loads(FIELDS)}
    assert vllm.scopes[0]["headers"] == [
        (b"x-request-id", b"r1"),
        (b"authorization", b"Bearer secret"),
        (b"accept", b"*/*"),
    ]
    assert (client.status, client.headers[b"x-penstock-verdict"]) == (200, b"admitted")
    assert client.body == TOKEN + TOKEN + DONE


async def test_a_stream_is_reported_when_it_has_begun_and_when_it_is_whole(server: Server) -> None:
    await server.answered()
    await eventually(lambda: len(Sidecar.reports) == 2)
    begun, whole = Sidecar.reports
    assert (begun.progress, whole.progress, whole.tokens) == (Progress.BEGUN, Progress.WHOLE, 2)
    assert len(whole.token_times_s) == 2 and sorted(whole.token_times_s) == whole.token_times_s


async def test_an_answer_in_one_piece_is_reported_with_the_engine_s_counts(
    server: Server, vllm: Vllm
) -> None:
    body = b'{"usage":{"prompt_tokens":3,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":1}}}'
    vllm.whole(body)
    assert (await server.answered()).body == body
    await eventually(lambda: len(Sidecar.reports) == 1)
    report = Sidecar.reports[0]
    assert (report.prompt_tokens, report.completion_tokens, report.cached_tokens) == (3, 2, 1)


async def test_a_rejection_is_sent_and_vllm_is_not_asked(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    sidecar.decide = reject
    client = await server.answered()
    assert (client.status, client.headers[b"retry-after"]) == (429, b"7")
    assert (
        client.headers[b"x-penstock-rejected"] == b"1" and json.loads(client.body)["error"]["message"] == "no"
    )
    assert not vllm.scopes


@pytest.mark.parametrize("path", ["/v1/models", "/v1/responses", "/tokenize", "/v1/load_lora_adapter"])
async def test_vllm_s_other_paths_are_the_sidecar_s_to_answer(
    path: str, server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    sidecar.decide = reject
    assert (await server.answered(b"", f"POST {path}")).status == 429
    assert not vllm.scopes


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [("GET /health", {}), ("GET /metrics", {}), ("POST /v1/completions", {DECIDED: "1"})],
)
async def test_pages_for_probes_and_decided_requests_are_served_without_asking(
    request_line: str, headers: dict[str, str], server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    client = await server.answered(BODY, request_line, **headers)
    assert client.body == TOKEN + TOKEN + DONE
    assert vllm.bodies == [BODY[: len(BODY) // 2]] and not sidecar.calls  # the application reads the rest


async def test_without_a_sidecar_the_gateway_tries_the_next_replica(tmp_path: Path, vllm: Vllm) -> None:
    server = Server(vllm, tmp_path / "nobody.sock")
    client = await server.answered()
    assert (client.status, client.headers[b"x-penstock-rejected"]) == (503, b"1")
    assert json.loads(client.body)["error"]["code"] == "no_replicas" and not vllm.scopes
    server.living.cancel()


async def test_a_sidecar_that_is_lost_before_its_decision_hops_too(server: Server, sidecar: Sidecar) -> None:
    async def undecided(call: EngineCall) -> None:
        gone = asyncio.Event()
        call.http.on_gone = gone.set
        await gone.wait()

    sidecar.decide = undecided
    client = server.ask()
    await eventually(lambda: len(sidecar.calls) == 1)
    for connection in list(sidecar.connections.open):
        connection.close()
    await client.task
    assert client.status == 503


async def test_a_sidecar_that_is_too_slow_is_told_that_the_request_has_gone(
    server: Server, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()

    async def sleep(call: EngineCall) -> None:
        call.http.on_gone = gone.set
        await gone.wait()

    sidecar.decide = sleep
    monkeypatch.setattr("penstock_proto.sidecar_calls.DECISION_S", 0.0)
    assert (await server.answered()).status == 503
    await eventually(gone.is_set)


async def test_a_client_that_leaves_before_the_decision_is_reported(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    gone = asyncio.Event()

    async def wait(call: EngineCall) -> None:
        call.http.on_gone = gone.set
        await gone.wait()

    sidecar.decide = wait
    client = server.ask()
    await eventually(lambda: len(sidecar.calls) == 1)
    client.leave()
    await client.task
    await eventually(gone.is_set)
    assert not client.sent and not vllm.scopes


async def test_a_client_that_leaves_a_stream_ends_it_in_vllm(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    vllm.answers = vllm.endless
    client = server.ask()
    await eventually(lambda: len(client.sent) == 2)
    client.leave()
    await client.task
    await eventually(lambda: sidecar.calls[0].http.gone)
    assert [report.progress for report in Sidecar.reports] == [Progress.BEGUN]


async def test_an_error_of_vllm_is_answered_by_the_sidecar(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    async def refuse(call: EngineCall) -> None:
        refused = asyncio.get_running_loop().create_future()
        call.on_report = refused.set_result
        call.proceed(await call.http.body(1 << 20), "r1", [])
        report = await refused
        raise ApiError(report.status, report.body.decode())

    sidecar.decide = refuse
    vllm.whole(b"too long", 400)
    client = await server.answered()
    assert (client.status, json.loads(client.body)["error"]["message"]) == (400, "too long")


@pytest.mark.parametrize("started", [False, True], ids=["no response", "a response without a token"])
async def test_a_request_that_the_sidecar_ends_before_its_answer_hops(
    started: bool, server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    async def drain(call: EngineCall) -> None:
        call.proceed(await call.http.body(1 << 20), "r1", [])
        await eventually(lambda: bool(vllm.scopes))
        raise ApiError(503, "draining", headers=(("x-penstock-rejected", "1"),))

    sidecar.decide, vllm.answers = drain, vllm.waits_with_head if started else vllm.waits
    client = await server.answered()
    assert (client.status, client.headers[b"x-penstock-rejected"]) == (503, b"1")


async def test_a_request_that_a_drain_returns_too_late_is_served_to_its_end(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    """The sidecar returned it before it knew that its answer had begun."""

    async def drain(call: EngineCall) -> None:
        begun = asyncio.Event()
        call.on_report = lambda _: begun.set()
        call.proceed(await call.http.body(1 << 20), "r1", [])
        await begun.wait()
        raise ApiError(503, "draining", headers=(("x-penstock-rejected", "1"),))

    sidecar.decide, vllm.answers = drain, vllm.until_told
    client = server.ask()
    await eventually(lambda: bool(sidecar.calls) and sidecar.calls[0].http.ended)
    await eventually(lambda: server.app._calls._open == {})  # the response has arrived
    vllm.go_on.set()
    await client.task
    assert client.body == TOKEN + DONE


async def test_a_stream_that_the_sidecar_ends_has_the_error_as_its_last_event(
    server: Server, sidecar: Sidecar, vllm: Vllm
) -> None:
    async def lose(call: EngineCall) -> None:
        begun = asyncio.Event()
        call.on_report = lambda _: begun.set()
        call.proceed(await call.http.body(1 << 20), "r1", [])
        await begun.wait()
        raise ApiError(502, "lost")

    sidecar.decide, vllm.answers = lose, vllm.endless
    client = await server.answered()
    assert client.body.startswith(TOKEN + b'data: {"error":') and client.sent[-1]["more_body"] is False


async def test_an_application_that_fails_is_reported_and_its_error_goes_on(
    server: Server, vllm: Vllm
) -> None:
    async def fail(receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": STREAM})
        await send({"type": "http.response.body", "body": TOKEN, "more_body": True})
        raise TimeoutError("a defect")

    vllm.answers = fail
    with pytest.raises(TimeoutError, match="a defect"):
        await server.answered()
    await eventually(
        lambda: [report.progress for report in Sidecar.reports] == [Progress.BEGUN, Progress.CUT]
    )


async def test_a_body_is_bounded_in_bytes_and_time(
    server: Server, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_middleware, "LONGEST_BODY", 10)
    assert (await server.answered()).status == 413
    monkeypatch.setattr(gateway_middleware, "BODY_S", 0.0)
    slow = server.ask()
    slow._incoming.get_nowait()
    slow._incoming.get_nowait()
    await slow.task
    assert slow.status == 408
    assert not sidecar.calls


async def test_a_client_that_leaves_before_its_body_costs_nothing(server: Server, sidecar: Sidecar) -> None:
    client = server.ask()
    client._incoming.get_nowait(), client._incoming.get_nowait()
    client.leave()
    await client.task
    assert not client.sent and not sidecar.calls


async def test_websockets_are_refused(server: Server, vllm: Vllm) -> None:
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await server.app({"type": "websocket", "path": "/v1/realtime"}, server._nothing, send)
    assert sent == [{"type": "websocket.close", "code": 1008}] and not vllm.scopes


def test_the_middleware_needs_the_sidecar_s_socket() -> None:
    with pytest.raises(ValueError, match="PENSTOCK_TELEMETRY is not set"):
        SidecarAdmission(Vllm(), {})
