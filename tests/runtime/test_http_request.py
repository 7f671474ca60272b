"""What an app does with a request: reads its body, answers whole or in parts, raises errors."""

import asyncio
from typing import Any

import orjson
import pytest
from http_by_hand import Wire, asked, connected, read, request_in_hand
from loop_time import skip, turns
from penstock_runtime.http_connection.bounds import HttpBounds
from penstock_runtime.http_connection.protocol import HttpProtocol
from penstock_runtime.http_request import PIECE_BYTES, App, ClientGone, HttpRequest
from penstock_runtime.openai_errors import ApiError

GET = b"GET / HTTP/1.1"


def posts(length: int, *more: bytes) -> bytes:
    return b"\r\n".join([b"POST / HTTP/1.1", b"content-length: %d" % length, *more, b"", b""])


def echoes(max_bytes: int, **options: Any) -> App:
    async def app(request: HttpRequest) -> None:
        await request.answer(await request.body(max_bytes, **options))

    return app


async def sent(app: App, *pieces: bytes, bounds: HttpBounds | None = None) -> tuple[HttpProtocol, Wire]:
    """A connection after these pieces, each with all that follows from it."""
    _, connection, wire = connected(app, bounds)
    for piece in pieces:
        connection.data_received(piece)
        await turns()
    return connection, wire


def error_of(wire: Wire) -> dict[str, Any]:
    error: dict[str, Any] = orjson.loads(read(wire.written).body)["error"]
    return error


@pytest.mark.parametrize("pieces", [[b"abc"], [b"ab", b"c"], [b"", b"a", b"b", b"c"]])
async def test_a_body_has_all_of_its_pieces(pieces: list[bytes]) -> None:
    _, wire = await sent(echoes(3), posts(3) + pieces[0], *pieces[1:])
    assert read(wire.written).body == b"abc"


async def test_body_bytes_that_the_app_has_read_are_no_longer_buffered() -> None:
    request = request_in_hand(posts(9))
    reading = asyncio.create_task(request.body(9))
    await turns()
    request.feed(b"abcd")
    assert request.buffered_bytes == 4
    await turns()
    assert request.buffered_bytes == 0
    request.feed(b"efghi")
    assert request.buffered_bytes == 5
    request.complete()
    assert await reading == b"abcdefghi"


async def test_a_request_without_a_body_has_an_empty_one() -> None:
    assert (await asked(echoes(3), GET)).body == b""


async def test_a_body_may_be_at_most_as_long_as_its_bound() -> None:
    _, wire = await sent(echoes(4), posts(4) + b"ab", b"cd")
    assert wire.statuses == [200]
    _, wire = await sent(echoes(3), posts(4) + b"ab", b"cd")
    assert wire.statuses == [413] and "over the bound of 3 bytes" in error_of(wire)["message"]
    assert b"\r\nconnection: close\r\n" in wire.written


async def test_a_body_that_does_not_arrive_in_time_is_answered_408() -> None:
    _, wire = await sent(echoes(3, timeout_s=5), posts(3) + b"a")
    await skip(4.9)
    assert wire.statuses == []
    await skip(0.2)
    assert wire.statuses == [408] and "did not arrive within 5 s" in error_of(wire)["message"]


async def test_each_piece_is_counted_before_it_is_buffered_and_an_error_ends_reading() -> None:
    held: list[int] = []

    def hold(more_bytes: int) -> None:
        held.append(more_bytes)
        if sum(held) > 3:
            raise ApiError(429, "full")

    _, wire = await sent(echoes(100, hold=hold), posts(6) + b"a", b"bc", b"de", b"f")
    assert (wire.statuses, held) == ([429], [1, 2, 2])


async def test_a_client_that_disconnects_within_its_body_has_no_body() -> None:
    ended = list[type[BaseException]]()

    async def app(request: HttpRequest) -> None:
        try:
            await request.body(3)
        except ClientGone:
            ended.append(ClientGone)
            raise

    connection, wire = await sent(app, posts(3) + b"a")
    connection.connection_lost(None)
    await turns()
    assert (ended, wire.written) == ([ClientGone], b"")


async def test_little_of_a_body_is_read_before_its_app_reads_it() -> None:
    may_read = asyncio.Event()

    async def app(request: HttpRequest) -> None:
        await may_read.wait()
        await request.answer(b"%d" % len(await request.body(10 * PIECE_BYTES)))

    connection, wire = await sent(app, posts(2 * PIECE_BYTES) + b"x" * PIECE_BYTES)
    assert not wire.reading_paused
    connection.data_received(b"x")
    assert wire.reading_paused
    may_read.set()
    await turns()
    assert not wire.reading_paused
    connection.data_received(b"x" * (PIECE_BYTES - 1))
    await turns()
    assert read(wire.written).body == b"%d" % (2 * PIECE_BYTES)


@pytest.mark.parametrize("header", [b"expect: something", b"x-other: 100-continue"])
async def test_a_client_without_expect_continue_gets_no_100(header: bytes) -> None:
    connection, wire = await sent(echoes(3), posts(2, header))
    connection.connection_lost(None)
    assert wire.written == b""


@pytest.mark.parametrize(("version", "goes_on"), [(b"1.1", True), (b"1.0", False)])
async def test_a_client_that_expects_100_continue_gets_it(version: bytes, goes_on: bool) -> None:
    head = posts(2, b"expect: 100-continue").replace(b"HTTP/1.1", b"HTTP/" + version)
    connection, wire = await sent(echoes(3), head)
    connection.connection_lost(None)
    await turns()
    assert wire.written == (b"HTTP/1.1 100 Continue\r\n\r\n" if goes_on else b"")
    _, wire = await sent(echoes(3), head + b"ab")
    assert wire.statuses == [200], "nothing is left to ask for"


async def test_a_client_that_expects_100_continue_may_be_refused() -> None:
    async def app(request: HttpRequest) -> None:
        raise ApiError(401, "unknown API key")

    _, wire = await sent(app, posts(2, b"expect: 100-continue"))
    assert wire.statuses == [401]


@pytest.mark.parametrize("length", [0, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_whole_answer_has_its_length(length: int) -> None:
    body = (bytes(range(256)) * (length // 256 + 1))[:length]

    async def app(request: HttpRequest) -> None:
        await request.answer(body, content_type=b"x/y", headers=[(b"x-more", b"z")])

    response = await asked(app, GET)
    assert (response.status, response.body) == (200, body)
    assert response.headers[b"content-length"] == str(length).encode()
    assert (response.headers[b"content-type"], response.headers[b"x-more"]) == (b"x/y", b"z")
    assert set(response.headers) == {b"content-type", b"content-length", b"x-more", b"date"}


async def test_a_long_answer_waits_for_its_client() -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"x" * 3 * PIECE_BYTES)

    class Full(Wire):
        """Full after each piece."""

        def write(self, data: bytes | bytearray | memoryview) -> None:
            super().write(data)
            if len(data) == PIECE_BYTES:
                connection.pause_writing()

    wire = Full()
    _, connection, _ = connected(app, wire=wire)
    connection.data_received(GET + b"\r\n\r\n")
    for pieces in (1, 2, 3):
        await turns()
        assert wire.written.count(b"x" * PIECE_BYTES) == pieces
        connection.resume_writing()
    await turns()
    assert not wire.closed
    connection.connection_lost(None)


async def test_a_status_without_a_name_is_sent() -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"{}", 499)

    assert (await asked(app, GET)).status == 499


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_no_length(status: int) -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"", status)

    response = await asked(app, GET)
    assert (response.status, set(response.headers), response.body) == (status, {b"date"}, b"")


async def test_head_is_answered_like_get_without_the_body() -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"hello")

    response = await asked(app, b"HEAD / HTTP/1.1")
    assert (response.headers[b"content-length"], response.body) == (b"5", b"")


async def in_parts(request: HttpRequest) -> None:
    request.start(headers=[(b"content-type", b"x/y")])
    await request.send(b"one")
    assert request.write(b"")
    assert request.write(b"two")
    await request.end(b"three")


@pytest.mark.parametrize(
    ("head", "body", "closes"),
    [
        (b"GET / HTTP/1.1", b"3\r\none\r\n3\r\ntwo\r\n5\r\nthree\r\n0\r\n\r\n", False),
        (b"GET / HTTP/1.0", b"onetwothree", True),
        (b"HEAD / HTTP/1.1", b"", False),
    ],
    ids=["chunks", "to the end of the connection", "head"],
)
async def test_an_answer_in_parts_has_a_recognisable_end(head: bytes, body: bytes, closes: bool) -> None:
    _, wire = await sent(in_parts, head + b"\r\n\r\n")
    response = read(wire.written)
    assert (response.status, response.body) == (200, body)
    assert (response.headers.get(b"transfer-encoding") == b"chunked") is (head == GET)
    assert wire.closed is closes is (response.headers.get(b"connection") == b"close")


async def test_an_answer_in_parts_may_end_without_a_last_one() -> None:
    async def app(request: HttpRequest) -> None:
        request.start()
        await request.end()

    assert (await asked(app, GET)).body == b"0\r\n\r\n"


async def test_no_output_is_written_to_a_client_that_does_not_read() -> None:
    async def app(request: HttpRequest) -> None:
        request.start()
        assert not request.write(b"one")
        await request.end(b"two")

    _, connection, wire = connected(app)
    connection.data_received(GET + b"\r\n\r\n")
    connection.pause_writing()
    await turns()
    assert read(wire.written).body == b""
    connection.resume_writing()
    await turns()
    assert read(wire.written).body == b"3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\rb"])
async def test_a_header_cannot_contain_another_one(value: bytes) -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"", headers=[(b"x-named", value)])

    response = await asked(app, GET)
    assert (response.status, b"cookie" in b"".join(response.headers)) == (500, False)


async def raised(error: BaseException, *before: bytes) -> Wire:
    """Return the output of an app that writes these parts and then raises this error."""

    async def app(request: HttpRequest) -> None:
        if before:
            request.start()
        for part in before:
            await request.send(part)
        raise error

    _, wire = await sent(app, GET + b"\r\n\r\n")
    return wire


@pytest.mark.parametrize(
    ("error", "status", "type_", "message"),
    [
        (ApiError(418, "short and stout"), 418, "invalid_request_error", "short and stout"),
        (ClientGone(), 400, "invalid_request_error", "the client went away"),
        (asyncio.CancelledError(), 503, "server_error", "the server stopped"),
        (ZeroDivisionError("secret"), 500, "server_error", "internal error"),
    ],
)
async def test_an_error_of_the_app_is_answered_as_an_api_error(
    error: BaseException, status: int, type_: str, message: str
) -> None:
    wire = await raised(error)
    said = error_of(wire)
    assert (wire.statuses, said["type"], said["message"]) == ([status], type_, message)


@pytest.mark.parametrize("error", [ApiError(502, "lost"), asyncio.CancelledError(), ZeroDivisionError()])
async def test_an_error_of_the_app_in_a_stream_is_the_last_event(error: BaseException) -> None:
    wire = await raised(error, b"data: one\n\n")
    assert wire.statuses == [200]
    assert b'data: {"error":' in wire.written and wire.written.endswith(b"}\n\n\r\n0\r\n\r\n")


async def test_a_whole_answer_is_truncated_if_its_app_fails() -> None:
    connection: HttpProtocol

    async def app(request: HttpRequest) -> None:
        connection.pause_writing()
        async with asyncio.timeout(5):
            await request.answer(b"x" * 2 * PIECE_BYTES)

    _, connection, wire = connected(app)
    connection.data_received(GET + b"\r\n\r\n")
    await turns()
    await skip(5.1)
    assert wire.closed and read(wire.written).body == b""


async def test_an_exception_after_the_answer_does_not_change_it() -> None:
    async def app(request: HttpRequest) -> None:
        await request.answer(b"hello")
        raise ZeroDivisionError

    _, wire = await sent(app, GET + b"\r\n\r\n")
    assert wire.statuses == [200] and wire.written.endswith(b"hello") and not wire.closed


async def test_an_app_without_an_answer_is_a_fault() -> None:
    async def app(request: HttpRequest) -> None:
        """Forget the client."""

    _, wire = await sent(app, GET + b"\r\n\r\n")
    assert wire.statuses == [500]
