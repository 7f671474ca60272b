"""Spans of requests, which the real Envoy sends to a collector."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import orjson
from gateway.envoy import ext_authz, gateway
from gateway.picking import chat, ext_authz_address, picker_of
from gateway.replica import HttpReplica
from patience import eventually
from penstock_runtime.envoy.settings import Tracing
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.serving import address_of, listen, serving

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
REQUESTS = 6
"""Envoy sends spans by fives."""


@asynccontextmanager
async def collector() -> AsyncIterator[tuple[str, list[tuple[str, bytes]]]]:
    """A collector: its URL, and path and body of what it has received."""
    received: list[tuple[str, bytes]] = []

    async def app(request: HttpRequest) -> None:
        received.append((request.path, await request.body(2**20, 10.0)))
        await request.answer(b"")

    listener = listen("127.0.0.1", 0)
    async with serving(app, listener, 0.0):
        yield f"http://{address_of(listener)}/v1/traces", received


async def test_a_clients_trace_continues_in_envoys_spans_and_at_the_replica(tmp_path: Path) -> None:
    r0, body = HttpReplica("r0"), orjson.dumps(chat())
    async with (
        collector() as (url, received),
        picker_of([r0]) as picker,
        ext_authz_address(picker) as address,
        gateway(tmp_path, ext_authz(address), [r0.endpoint], Tracing(url)) as envoy,
    ):
        for _ in range(REQUESTS):
            assert (await envoy.chat(body, traceparent=TRACEPARENT)).status_code == 200
        await eventually(lambda: bool(received))
    path, spans = received[0]
    assert path == "/v1/traces"
    assert bytes.fromhex(TRACE) in spans and b"penstock-gateway" in spans
    versions = {seen.headers["traceparent"].split("-")[1] for seen in r0.seen}
    assert versions == {TRACE}
    assert all(seen.headers["traceparent"] != TRACEPARENT for seen in r0.seen), "each attempt is a span"
