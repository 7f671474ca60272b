"""A simulated engine behind a gateway asks its sidecar about each request."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from patience import eventually
from penstock_proto.engine_calls import Progress, Report
from penstock_proto.sidecar_calls import SidecarCalls
from penstock_runtime.openai_errors import ApiError
from penstock_sidecar.http.engine_call import EngineCall
from penstock_sidecar.http.engine_socket import engine_connections

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
BODY = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
LONG = BODY | {"max_tokens": 900, "stream": True}
HEADERS = [(b"x-penstock-verdict", b"admitted")]


class Sidecar:
    """The sidecar's end, which a test controls. decide: what it does with each request."""

    def __init__(self) -> None:
        self.decide: Callable[[EngineCall], Awaitable[None]] = self.accept
        self.calls: list[EngineCall] = []
        self.reports: list[Report] = []

    async def serve(self, call: EngineCall) -> None:
        self.calls.append(call)
        await self.decide(call)

    async def accept(self, call: EngineCall) -> None:
        """Accept a request, and wait for its end."""
        ended = await self.begin(call)
        await ended.wait()
        call.completed()

    async def begin(self, call: EngineCall) -> asyncio.Event:
        """Accept a request. Returns an event that is set at its end."""
        ended, body = asyncio.Event(), await call.http.body(1 << 20)

        def take(report: Report) -> None:
            self.reports.append(report)
            if report.progress is not Progress.BEGUN:
                ended.set()

        call.on_report, call.http.on_gone = take, ended.set
        call.proceed(body, "r1", HEADERS)
        return ended

    async def reject(self, call: EngineCall) -> None:
        raise ApiError(429, "no", headers=(("x-penstock-rejected", "1"),))


@pytest.fixture
async def sidecar(tmp_path: Path) -> AsyncIterator[Sidecar]:
    made = Sidecar()
    async with engine_connections(tmp_path / "calls.sock", made.serve):
        yield made


@pytest.fixture
async def engine(sidecar: Sidecar, real_time: RealTime, tmp_path: Path) -> AsyncIterator[Any]:
    calls = SidecarCalls(tmp_path / "calls.sock")
    connecting = asyncio.create_task(calls.run())
    await eventually(lambda: calls.connected)
    async with real_time(calls=calls) as engine:
        yield engine
    connecting.cancel()
    with suppress(asyncio.CancelledError):
        await connecting


async def ask(
    engine: Any, body: dict[str, Any] = BODY, path: str = "completions", **headers: str
) -> httpx2.Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    async with httpx2.AsyncClient(base_url=engine.url, timeout=60) as client:
        return await client.post(f"/v1/{path}", json=body, headers=named)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_accepted_request_is_answered_and_reported(
    stream: bool, engine: Any, sidecar: Sidecar
) -> None:
    response = await ask(engine, BODY | {"stream": stream})
    assert (response.status_code, response.headers["x-penstock-verdict"]) == (200, "admitted")
    assert "cmpl-r1" in response.text
    await eventually(lambda: bool(sidecar.reports) and sidecar.reports[-1].progress is Progress.WHOLE)
    whole = sidecar.reports[-1]
    assert (whole.tokens, len(whole.token_times_s)) == (3, 3 if stream else 0)
    assert (whole.prompt_tokens, whole.completion_tokens) == ((None, None) if stream else (3, 3))


async def test_a_rejection_is_the_sidecar_s_response(engine: Any, sidecar: Sidecar) -> None:
    sidecar.decide = sidecar.reject
    response = await ask(engine)
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (429, "1")
    assert response.json()["error"]["message"] == "no" and engine.loop.state.running_count == 0
    assert (await ask(engine, path="models")).status_code == 429  # every path is asked about


async def test_pages_for_probes_and_decided_requests_are_served_without_asking(
    engine: Any, sidecar: Sidecar
) -> None:
    async with httpx2.AsyncClient(base_url=engine.url) as client:
        assert (await client.get("/health")).status_code == 200
    assert (await ask(engine, x_penstock_decided="1")).status_code == 200
    assert not sidecar.calls


async def test_an_engine_s_error_is_answered_by_the_sidecar(engine: Any, sidecar: Sidecar) -> None:
    async def refuse(call: EngineCall) -> None:
        ended = await sidecar.begin(call)
        await ended.wait()
        raise ApiError(sidecar.reports[-1].status, "of the sidecar")

    sidecar.decide = refuse
    response = await ask(engine, BODY | {"max_tokens": 0})
    assert (response.status_code, response.json()["error"]["message"]) == (400, "of the sidecar")


async def test_a_client_that_leaves_ends_its_work(engine: Any, sidecar: Sidecar) -> None:
    async with (
        httpx2.AsyncClient(base_url=engine.url, timeout=60) as client,
        client.stream("POST", "/v1/completions", json=LONG) as stream,
    ):
        await anext(stream.aiter_bytes())
    await eventually(lambda: sidecar.calls[0].http.gone)
    await engine.until(lambda state: state.running_count == 0)


async def test_a_stream_that_the_sidecar_ends_has_the_error_as_its_last_event(
    engine: Any, sidecar: Sidecar
) -> None:
    async def lose(call: EngineCall) -> None:
        await sidecar.begin(call)
        await eventually(lambda: bool(sidecar.reports))
        raise ApiError(502, "lost")

    sidecar.decide = lose
    response = await ask(engine, LONG)
    assert response.text.startswith("data: {") and '"message":"lost"' in response.text
    assert "[DONE]" not in response.text
    await engine.until(lambda state: state.running_count == 0)


async def test_a_request_that_a_drain_returns_hops(engine: Any, sidecar: Sidecar) -> None:
    async def drain(call: EngineCall) -> None:
        await sidecar.begin(call)
        raise ApiError(503, "draining", headers=(("x-penstock-rejected", "1"),))

    sidecar.decide = drain
    response = await ask(engine, BODY | {"max_tokens": 900})
    assert (response.status_code, response.headers["x-penstock-rejected"]) == (503, "1")


def hops(response: httpx2.Response) -> bool:
    assert response.json()["error"]["code"] == "no_replicas"
    return response.status_code == 503 and response.headers["x-penstock-rejected"] == "1"


async def test_without_a_sidecar_the_gateway_tries_the_next_replica(
    real_time: RealTime, tmp_path: Path
) -> None:
    async with real_time(calls=SidecarCalls(tmp_path / "nobody.sock")) as engine:
        assert hops(await ask(engine))


async def test_a_sidecar_that_is_too_slow_is_told_that_the_request_has_gone(
    engine: Any, sidecar: Sidecar, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = asyncio.Event()

    async def sleep(call: EngineCall) -> None:
        call.http.on_gone = gone.set
        await gone.wait()

    sidecar.decide = sleep
    monkeypatch.setattr("penstock_proto.sidecar_calls.DECISION_S", 0.0)
    assert hops(await ask(engine))
    await eventually(gone.is_set)
