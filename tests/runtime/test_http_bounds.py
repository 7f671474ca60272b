"""The clocks of a connection: it is fed by hand, and the loop's time is moved."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_by_hand import Wire
from loop_time import skip, turns
from penstock_pool.serving_spec import RouterSpec
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_connection.protocol import HttpProtocol
from penstock_runtime.http_request import HttpRequest
from penstock_runtime.openai_errors import ApiError
from penstock_runtime.serving import Server, listen, serving
from penstock_runtime.tls_server import TLS_SHUTDOWN_S

GET = b"GET /%s HTTP/1.1\r\nhost: x\r\n\r\n"
HALF = GET[:-2]
RELIABILITY = Path(__file__).parents[2] / "docs" / "reliability.md"


class App:
    """An app that answers immediately, before it has read the body, or when the test permits."""

    def __init__(self) -> None:
        self.may_end = asyncio.Event()

    async def __call__(self, request: HttpRequest) -> None:
        match request.path:
            case "/early":
                raise ApiError(401, "unknown API key")
            case "/slow":
                request.start()
                await request.send(b"begun")
                await self.may_end.wait()
                await request.end(b"ended")
            case _:
                await request.answer(await request.body(1000))


@asynccontextmanager
async def connection(app: App, **bounds: Any) -> AsyncIterator[tuple[HttpProtocol, Wire]]:
    async with serving(app, listen("127.0.0.1", 0), 0.0, HttpBounds(**bounds)) as server:
        one, wire = server.connection(), Wire()
        one.connection_made(wire)
        yield one, wire
        one.connection_lost(None)


async def fed(one: HttpProtocol, data: bytes) -> None:
    """The connection has read this, and done what follows."""
    one.data_received(data)
    await turns()


async def test_a_connection_without_a_request_is_closed_without_an_answer() -> None:
    async with connection(App(), head_s=5) as (_, wire):
        await skip(4.9)
        assert not wire.closed
        await skip(0.2)
        assert wire.closed and not wire.written


async def test_a_head_has_its_time_from_its_first_byte_not_from_its_last() -> None:
    async with connection(App(), head_s=5) as (one, wire):
        await fed(one, HALF % b"")
        await skip(4)
        await fed(one, b"x: y\r\n")
        await skip(2)
        assert wire.statuses == [408] and wire.ended


async def test_the_second_head_of_a_connection_has_its_bounds_too() -> None:
    for more, status in ((b"", 408), (b"x-long: " + b"y" * 1000, 431)):
        async with connection(App(), head_s=5, head_bytes=500) as (one, wire):
            await fed(one, GET % b"")
            await skip(60)  # idle for longer than a head may take
            assert wire.statuses == [200] and not wire.closed
            await fed(one, HALF % b"" + more)
            await skip(6)
            assert wire.statuses == [200, status]


async def test_a_head_may_be_as_long_as_its_bound() -> None:
    async with connection(App(), head_bytes=100) as (one, wire):
        await fed(one, (HALF % b"" + b"x: " + b"y" * 100)[:100])
        assert wire.statuses == []
        await fed(one, b"y")
        assert wire.statuses == [431]


async def test_a_head_that_arrives_whole_may_be_as_long_as_its_bound() -> None:
    head = b"GET /12345 HTTP/1.1\r\nx-y: 1234567\r\nz: \r\n\r\n"
    counted = len("/12345") + len("x-y: 1234567\r\n") + len("z: \r\n")
    for bound, status in ((counted, 200), (counted - 1, 431)):
        async with connection(App(), head_bytes=bound) as (one, wire):
            await fed(one, head)
            assert wire.statuses == [status]


async def test_a_head_after_a_body_may_be_as_long_as_its_bound() -> None:
    posted = b"POST / HTTP/1.1\r\ncontent-length: 3\r\n\r\nabc"
    head = (HALF % b"" + b"x: " + b"y" * 100)[:100]
    async with connection(App(), head_bytes=100) as (one, wire):
        await fed(one, posted + head[:1])
        await fed(one, head[1:])
        assert wire.statuses == [200]
        await fed(one, b"y")
        assert wire.statuses == [200, 431]


async def test_a_refused_request_that_asked_to_close_is_closed_by_its_last_byte() -> None:
    head = b"POST /early HTTP/1.1\r\nconnection: close\r\ncontent-length: 9\r\n\r\n"
    async with connection(App()) as (one, wire):
        await fed(one, head + b"abc")
        assert wire.statuses == [401] and wire.ended and not wire.closed
        await fed(one, b"defgh")
        assert not wire.closed
        await fed(one, b"i")
        assert wire.closed and not wire.aborted


async def test_a_connection_is_closed_after_its_idle_timeout() -> None:
    early = b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\n\r\n"
    for pieces in ([GET % b""], [early, b"abc"]):
        async with connection(App(), keep_alive_s=60) as (one, wire):
            for piece in pieces:
                await fed(one, piece)
            await skip(59.9)
            assert not wire.closed
            await skip(0.2)
            assert wire.closed and not wire.aborted


async def test_a_connection_is_not_idle_during_requests() -> None:
    app = App()
    async with connection(app, keep_alive_s=60, head_s=5) as (one, wire):
        await fed(one, GET % b"")
        await skip(59)
        await fed(one, GET % b"slow")
        await skip(600)
        assert not wire.closed
        app.may_end.set()
        await turns()
        assert b"ended" in wire.written


async def test_a_client_that_does_not_read_the_end_of_its_answer_is_dropped() -> None:
    """It is too little to make the answer wait."""
    async with connection(App(), write_s=5, keep_alive_s=3600) as (one, wire):
        wire.waiting_bytes = 100
        await fed(one, GET % b"")
        await skip(5.1)
        assert not wire.aborted
        await skip(5.1)
        assert wire.aborted


async def test_an_early_answer_waits_a_bounded_time_for_the_rest_of_its_request() -> None:
    async with connection(App(), linger_s=5) as (one, wire):
        await fed(one, b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
        assert wire.statuses == [401]
        await skip(4.9)
        assert not wire.aborted
        await skip(0.2)
        assert wire.aborted


async def test_bytes_after_a_refusal_are_dropped_for_a_bounded_time() -> None:
    async with connection(App(), linger_s=5) as (one, wire):
        await fed(one, b"no http at all\r\n\r\n")
        await fed(one, GET % b"")
        assert wire.statuses == [400] and wire.ended and not wire.closed
        await skip(5.1)
        assert wire.aborted


async def test_each_request_of_a_connection_has_the_same_time_after_its_answer() -> None:
    head = b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n"
    async with connection(App(), linger_bytes=100) as (one, wire):
        for number in range(1, 4):
            await fed(one, head)
            await fed(one, b"x" * 100)
            assert wire.statuses == [401] * number and not wire.closed
        await fed(one, head)
        await fed(one, b"x" * 101)
        assert wire.aborted


async def test_a_stopping_server_closes_the_connection_with_the_pending_answer() -> None:
    app = App()
    async with connection(app) as (one, wire):
        await fed(one, GET % b"slow")
        one.shutdown()
        await turns()
        assert not wire.closed
        app.may_end.set()
        await turns()
        assert b"ended" in wire.written and wire.closed


async def test_a_stopping_server_closes_an_idle_connection_shortly() -> None:
    async with connection(App(), last_call_s=5) as (one, wire):
        one.shutdown()
        await skip(4.9)
        assert not wire.closed
        await skip(0.2)
        assert wire.closed and not wire.aborted


@pytest.mark.parametrize("begun", [b"", b"abc"])
async def test_a_stopping_server_does_not_await_the_rest_of_an_answered_request(begun: bytes) -> None:
    async with connection(App(), last_call_s=5, linger_s=3600) as (one, wire):
        await fed(one, b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\n" + begun)
        one.shutdown()
        await skip(5.1)
        assert wire.statuses == [401] and wire.closed


async def test_a_stopping_server_closes_a_connection_that_becomes_idle() -> None:
    async with connection(App(), last_call_s=5) as (one, wire):
        await fed(one, GET % b"")
        one.shutdown()
        await skip(5.1)
        assert wire.closed


@pytest.mark.parametrize("request_bytes", [HALF % b"", GET % b"slow"], ids=["half", "under way"])
async def test_a_request_that_arrives_before_the_close_is_answered(request_bytes: bytes) -> None:
    async with connection(App(), last_call_s=5) as (one, wire):
        one.shutdown()
        await fed(one, request_bytes)
        await skip(5.1)
        assert not wire.closed


async def test_a_half_closed_client_has_a_short_time_for_its_answer() -> None:
    async with connection(App(), half_closed_s=5) as (one, wire):
        assert one.eof_received() is False  # nothing is due: asyncio closes
        await fed(one, GET % b"slow")
        assert one.eof_received() is True
        await skip(4.9)
        assert not wire.closed
        await skip(0.2)
        assert wire.closed


async def test_the_answer_to_a_half_closed_client_is_its_last() -> None:
    app = App()
    async with connection(app, half_closed_s=5) as (one, wire):
        await fed(one, GET % b"slow")
        one.eof_received()
        app.may_end.set()
        await turns()
        assert b"ended" in wire.written and wire.closed


async def test_a_drain_ends_with_the_last_app_even_if_its_client_has_disconnected() -> None:
    app = App()
    server = Server(app, HttpBounds(), None)
    one = server.connection()
    one.connection_made(Wire())
    await fed(one, GET % b"slow")
    stopping = asyncio.create_task(server.stop(3600))
    one.connection_lost(None)
    await turns()
    assert not stopping.done()
    app.may_end.set()
    await turns()
    assert stopping.done()


@pytest.mark.parametrize("left", ["idle", "in a head", "half closed", "before its body", "stopping"])
async def test_a_lost_connection_has_no_further_effect(left: str) -> None:
    app = App()
    async with serving(app, listen("127.0.0.1", 0), 0.0, HttpBounds()) as server:
        one, wire = server.connection(), Wire()
        one.connection_made(wire)
        if left == "in a head":
            await fed(one, HALF % b"")
        elif left == "half closed":
            await fed(one, GET % b"slow")
            one.eof_received()
        elif left == "before its body":
            await fed(one, b"POST /early HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nabc")
        elif left == "stopping":
            one.shutdown()
        one.connection_lost(ConnectionResetError())
        written, wire.closed, wire.ended = wire.written, False, False
        await skip(3600)
        assert (wire.closed, wire.ended, wire.written) == (False, False, written)
        app.may_end.set()


def test_the_bounds_equal_the_documented_ones() -> None:
    rows = [line.strip("| ").split(" | ") for line in RELIABILITY.read_text().splitlines() if " | " in line]
    documented = {row[1]: row[2] for row in rows if len(row) > 3}
    usual, of_a_pool = HttpBounds(), RouterSpec()
    assert (usual.head_bytes, usual.write_s) == (of_a_pool.max_header_bytes, of_a_pool.write_timeout_s)
    rest = f"{usual.linger_bytes >> 20} MiB, {usual.linger_s:g} s"
    assert documented["open connections, including those in a TLS handshake"] == f"{usual.connections:,}"
    assert documented["the rest of a request that is already answered"] == rest
    assert documented["a request's headers"].endswith(f", {usual.head_s:g} s")
    idle = f"{usual.keep_alive_s} s; {usual.last_call_s:g} s when the router stops"
    assert documented["an idle connection"] == idle
    assert (
        documented["a TLS handshake; a client's reply to TLS shutdown"]
        == f"{usual.head_s:g} s; {TLS_SHUTDOWN_S:g} s"
    )
    assert documented["an answer to a client that has closed its side"] == f"{usual.half_closed_s:g} s"
