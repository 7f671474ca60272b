"""What an app is spared: bodies in pieces, clients that go away, errors in OpenAI's shape."""

import asyncio

import orjson
import pytest
from penstock_runtime.asgi import (
    PIECE_BYTES,
    ClientGone,
    Message,
    Receive,
    Scope,
    Send,
    answer,
    read_body,
    with_errors,
)
from penstock_runtime.openai_errors import ApiError

HTTP: Scope = {"type": "http", "path": "/"}


def receiving(*messages: Message) -> Receive:
    """A client that sends these and then nothing, for ever."""
    coming = iter(messages)

    async def receive() -> Message:
        message = next(coming, None)
        return message if message is not None else await asyncio.get_running_loop().create_future()

    return receive


def pieces(*bodies: bytes) -> list[Message]:
    """A body in pieces; only the last says nothing of more."""
    return [
        *({"type": "http.request", "body": body, "more_body": True} for body in bodies[:-1]),
        {"type": "http.request", "body": bodies[-1]},
    ]


class Client:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.heard: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.heard.append(message)

    @property
    def statuses(self) -> list[int]:
        return [message["status"] for message in self.heard if "status" in message]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.heard)


@pytest.mark.parametrize("bodies", [[b""], [b"abc"], [b"ab", b"c"], [b"a", b"b", b"", b"c"]])
async def test_a_body_is_all_of_its_pieces(bodies: list[bytes]) -> None:
    assert await read_body(receiving(*pieces(*bodies)), 3) == b"".join(bodies)


async def test_a_body_may_be_as_long_as_its_bound_and_no_longer() -> None:
    assert await read_body(receiving(*pieces(b"ab", b"cd")), 4) == b"abcd"
    with pytest.raises(ApiError, match="over the bound of 3 bytes") as raised:
        await read_body(receiving(*pieces(b"ab", b"cd")), 3)
    assert (raised.value.status, raised.value.headers) == (413, (("connection", "close"),))


async def test_a_body_that_does_not_arrive_in_time_is_answered_408() -> None:
    with pytest.raises(ApiError, match="did not arrive within 0 s") as raised:
        await read_body(receiving(), 3, timeout_s=0)
    assert (raised.value.status, raised.value.headers) == (408, (("connection", "close"),))


async def test_each_piece_is_held_before_it_is_kept_and_what_holding_raises_ends_the_reading() -> None:
    held: list[int] = []

    def hold(more_bytes: int) -> None:
        held.append(more_bytes)
        if sum(held) > 3:
            raise ApiError(429, "full")

    with pytest.raises(ApiError, match="full"):
        await read_body(receiving(*pieces(b"a", b"bc", b"de", b"f")), 100, hold=hold)
    assert held == [1, 2, 2]


async def test_a_client_that_goes_away_in_its_body_has_no_body() -> None:
    with pytest.raises(ClientGone):
        await read_body(receiving(*pieces(b"a", b"b")[:1], {"type": "http.disconnect"}), 3)


@pytest.mark.parametrize("length", [0, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES])
async def test_a_long_answer_is_written_in_pieces(length: int) -> None:
    client, body = Client(), bytes(range(256)) * (length // 256 + 1)
    await answer(client, body[:length])
    start, *rest = client.heard
    assert (start["status"], start["headers"][1]) == (200, (b"content-length", str(length).encode()))
    assert client.body == body[:length]
    assert [len(message["body"]) > PIECE_BYTES for message in rest] == [False] * max(
        -(-length // PIECE_BYTES), 1
    )
    assert [message.get("more_body", False) for message in rest] == [True] * (len(rest) - 1) + [False]


async def told_of(error: BaseException, *before: Message) -> Client:
    """A client of an app that sends something and then raises this."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in before:
            await send(message)
        raise error

    client = Client()
    await with_errors(app)(HTTP, receiving(), client)
    return client


BEGUN: Message = {"type": "http.response.start", "status": 200, "headers": []}


@pytest.mark.parametrize(
    ("error", "status", "type_", "message"),
    [
        (ApiError(418, "short and stout"), 418, "invalid_request_error", "short and stout"),
        (ClientGone(), 400, "invalid_request_error", "the client went away"),
        (asyncio.CancelledError(), 503, "server_error", "the server stopped"),
        (ZeroDivisionError("secret"), 500, "server_error", "internal error"),
    ],
)
async def test_what_an_app_raises_is_its_answer(
    error: BaseException, status: int, type_: str, message: str
) -> None:
    client = await told_of(error)
    told = orjson.loads(client.body)["error"]
    assert (client.statuses, told["type"], told["message"]) == ([status], type_, message)


@pytest.mark.parametrize("error", [ApiError(502, "lost"), asyncio.CancelledError(), ZeroDivisionError()])
async def test_what_an_app_raises_in_a_stream_is_its_last_event(error: BaseException) -> None:
    client = await told_of(error, BEGUN)
    assert client.statuses == [200]
    assert client.body.startswith(b'data: {"error":') and client.body.endswith(b"}\n\n")
    assert not client.heard[-1].get("more_body", False)


async def test_a_client_that_went_away_in_a_stream_is_told_nothing() -> None:
    assert (await told_of(ClientGone(), BEGUN)).heard == [BEGUN]


async def test_an_app_is_asked_for_http_only() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("asked")

    client = Client()
    await with_errors(app)({"type": "websocket", "path": "/"}, receiving(), client)
    assert client.heard == []
