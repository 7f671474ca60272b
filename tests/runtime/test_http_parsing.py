"""Parsing of a connection: the same requests however bytes are split, and one refusal of invalid ones."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import pytest
from http_by_hand import Wire, connected
from hypothesis import given
from hypothesis import strategies as st
from loop_time import turns
from penstock_runtime.http_connection.protocol import MOST_UNANSWERED, HttpProtocol
from penstock_runtime.http_request import HttpRequest

MANY_BYTES = 100_000
TOKEN = st.text("abcdefghijklmnopqrstuvwxyz-0123456789", min_size=1, max_size=12)
VALUE = st.text("abcdefghijklmnopqrstuvwxyz ,;=/\"'", max_size=20).map(str.strip)
FRAMING = {"content-length", "transfer-encoding", "connection", "expect", "upgrade", "trailer"}
PLAIN = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED_HEAD = b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
JUNK = b"junk / with no version\r\n\r\n"


class Seen(NamedTuple):
    """A request as an app sees it."""

    method: str
    path: str
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


class Echo:
    """An app that records its requests and answers with the body's length."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []

    async def __call__(self, request: HttpRequest) -> None:
        body = await request.body(MANY_BYTES)
        self.seen.append(Seen(request.method, request.path, tuple(request.headers), body))
        await request.answer(b"%d" % len(body))


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """A request in one of the framings that HTTP/1.1 has."""
    target = "/" + draw(TOKEN) + draw(st.sampled_from(["", "?a=b", "/%41"]))
    lines = [f"{draw(st.sampled_from(['GET', 'POST', 'PUT', 'HEAD']))} {target} HTTP/1.1", "host: x"]
    names = TOKEN.filter(lambda name: name not in FRAMING)
    lines += [f"{name}: {value}" for name, value in draw(st.lists(st.tuples(names, VALUE), max_size=4))]
    parts = draw(st.lists(st.binary(min_size=1, max_size=200), max_size=3))
    match draw(st.sampled_from(["none", "length", "chunked"])):
        case "none":
            return "\r\n".join([*lines, "", ""]).encode()
        case "length":
            body = b"".join(parts)
            return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body
        case _:
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"
            return "\r\n".join([*lines, "transfer-encoding: chunked", "", ""]).encode() + chunks


def split(data: bytes, at: Sequence[int]) -> list[bytes]:
    cuts = [0, *sorted({cut % (len(data) + 1) for cut in at}), len(data)]
    return [data[begin:end] for begin, end in pairwise(cuts) if end > begin]


async def fed(pieces: Sequence[bytes], pauses: bool = True) -> tuple[list[Seen], Wire, HttpProtocol]:
    """What an app sees of these pieces. pauses: it answers between them, as far as it can."""
    app = Echo()
    server, connection, wire = connected(app)
    for piece in pieces:
        connection.data_received(piece)
        if pauses:
            await turns()
    await turns()
    while server.tasks and not all(task.done() for task in server.tasks) and not wire.closed:
        before = len(app.seen)
        await turns()
        if len(app.seen) == before:
            break
    return app.seen, wire, connection


def run(pieces: Sequence[bytes], pauses: bool = True) -> tuple[list[Seen], Wire]:
    async def story() -> tuple[list[Seen], Wire]:
        seen, wire, connection = await fed(pieces, pauses)
        connection.connection_lost(None)
        await turns()
        return seen, wire

    return asyncio.run(story())


@given(
    st.lists(requests(), min_size=1, max_size=4), st.lists(st.integers(0, 5000), max_size=8), st.booleans()
)
def test_any_split_of_the_bytes_gives_the_same_requests(
    asked: list[bytes], at: list[int], pauses: bool
) -> None:
    data = b"".join(asked)
    one_by_one, wire = run(asked)
    seen, split_wire = run(split(data, at), pauses)
    assert len(seen) == len(asked)
    assert seen == one_by_one
    assert split_wire.statuses == wire.statuses == [200] * len(asked)


@given(requests(), st.binary(min_size=1, max_size=300), st.lists(st.integers(0, 1000), max_size=5))
def test_invalid_bytes_end_their_own_connection_with_one_refusal_at_most(
    good: bytes, junk: bytes, at: list[int]
) -> None:
    seen, wire = run([good, *split(junk, at)])
    refusals = [status for status in wire.statuses if status != 200]
    assert wire.statuses[:1] == [200] and seen
    assert len(refusals) <= 1 and wire.statuses[-1:] in ([200], refusals)
    assert set(refusals) <= {400, 431}
    if refusals:
        assert wire.ended or wire.closed
        assert b"\r\nconnection: close\r\n" in wire.written


async def test_every_request_before_invalid_bytes_is_answered() -> None:
    """The last request has begun, and its body is invalid."""
    seen, wire, connection = await fed([PLAIN * 2 + CHUNKED_HEAD + b"no length\r\n"])
    assert (len(seen), wire.statuses) == (2, [200, 200, 400])
    connection.connection_lost(None)


@given(st.lists(st.integers(0, 1000), max_size=5))
def test_invalid_bytes_are_refused_once_in_any_split(at: list[int]) -> None:
    _, wire = run(split(JUNK * 3, at))
    assert wire.statuses == [400] and wire.ended


@pytest.mark.parametrize(
    "framing",
    [
        b"content-length: 3\r\ncontent-length: 4",
        b"content-length: 3\r\ntransfer-encoding: chunked",
        b"transfer-encoding: chunked\r\ncontent-length: 3",
        b"transfer-encoding: gzip",
        b"content-length: +3",
        b"content-length: 3, 3",
        b"content-length : 3",
        b" content-length: 3",
        b"content-length: 99999999999999999999",
        b"transfer-encoding: chunked\r\ntransfer-encoding: identity",
    ],
)
def test_a_body_of_ambiguous_length_is_refused(framing: bytes) -> None:
    """A server before this one may read it in another way, and take for a body what would be a request."""
    smuggled = b"GET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    seen, wire = run([b"POST / HTTP/1.1\r\nhost: x\r\n" + framing + b"\r\n\r\nabc" + smuggled])
    assert (seen, wire.statuses) == ([], [400])


def test_a_path_is_decoded_without_its_query() -> None:
    for target in (b"/a%20b?c=d", b"http://x/a%20b?c=d"):
        seen, _ = run([b"GET " + target + b" HTTP/1.1\r\nhost: x\r\n\r\n"])
        assert seen[0].path == "/a b"
    seen, _ = run([b"GET http://x HTTP/1.1\r\nhost: x\r\n\r\n"])
    assert seen[0].path == "/"


@pytest.mark.parametrize("body", [b"", b"hello"])
def test_a_client_that_offers_another_protocol_is_answered_in_http_1(body: bytes) -> None:
    """Java's client asks for HTTP/2 with its first request, whatever its body."""
    upgrade = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: x\r\n"
    head = b"POST /a HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (upgrade, len(body))
    plain = b"GET /b HTTP/1.1\r\nhost: x\r\n\r\n"
    seen, wire = run([head + body + plain])
    assert [(each.path, each.body) for each in seen] == [("/a", body), ("/b", b"")]
    assert wire.statuses == [200, 200]


def test_a_connect_request_is_refused() -> None:
    seen, wire = run([b"CONNECT x:443 HTTP/1.1\r\nhost: x\r\n\r\n"])
    assert (seen, wire.statuses) == ([], [405])


CHUNKED = CHUNKED_HEAD + b"3\r\nabc\r\n0\r\n"


def test_trailers_are_not_headers() -> None:
    seen, _ = run([CHUNKED + b"authorization: Bearer x\r\n\r\n"])
    assert [(each.headers[-1][0], each.body) for each in seen] == [(b"transfer-encoding", b"abc")]


@pytest.mark.parametrize("line", [b"x-a: y\r\n", b"y"], ids=["many", "one"])
def test_trailers_have_the_bound_of_headers(line: bytes) -> None:
    seen, wire = run([CHUNKED + b"x-a: ", *[line * 1000] * 70])
    assert (seen, wire.statuses) == ([], [431])


def test_no_request_is_served_after_one_that_closes_its_connection() -> None:
    closes = b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    for more in (b"", b"\r\n", closes, JUNK):
        seen, wire = run([closes + more])
        assert [each.path for each in seen] == ["/a"]
        assert wire.statuses == [200] and wire.closed


def test_an_http_1_0_connection_closes_with_its_response() -> None:
    seen, wire = run([b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n"])
    assert seen and wire.closed and b"\r\nconnection: close\r\n" in wire.written


async def test_reading_pauses_while_many_requests_wait() -> None:
    may_end = asyncio.Event()

    async def app(request: HttpRequest) -> None:
        await may_end.wait()
        await request.answer(b"")
        may_end.clear()

    server, connection, wire = connected(app)
    for before in (0, MOST_UNANSWERED + 2):
        connection.data_received(PLAIN * MOST_UNANSWERED)
        assert not wire.reading_paused
        connection.data_received(PLAIN * 2)
        for answers in range(MOST_UNANSWERED + 2):
            await turns()
            assert len(server.tasks) == 1 and len(wire.statuses) == before + answers
            assert wire.reading_paused is (answers < 2)
            may_end.set()
        await turns()
    connection.connection_lost(None)


async def test_reading_pauses_while_much_of_a_waiting_body_is_unread() -> None:
    may_end = asyncio.Event()

    async def app(request: HttpRequest) -> None:
        await may_end.wait()
        await request.answer(b"%d" % len(await request.body(MANY_BYTES)))

    _, connection, wire = connected(app)
    length = b"content-length: %d" % MANY_BYTES
    connection.data_received(b"GET / HTTP/1.1\r\n\r\n" + b"POST / HTTP/1.1\r\n" + length + b"\r\n\r\n")
    assert not wire.reading_paused
    connection.data_received(b"x" * MANY_BYTES)
    assert wire.reading_paused
    may_end.set()
    await turns()
    assert wire.statuses == [200, 200] and not wire.reading_paused
    connection.connection_lost(None)
