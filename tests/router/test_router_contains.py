"""A fault affects only its own request, and a client that does not read affects no other."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest
from patience import eventually
from penstock_proto import replica_pb2 as wire
from penstock_router.observability.access_log import AccessLog
from penstock_routing.replicas.replica_set import ReplicaSet
from penstock_routing.response import answer
from penstock_runtime.http_connection.bounds import HttpBounds
from scripted.replica import DONE, Part, ScriptedReplica, chat_answer, chat_chunk
from scripted.router import MODEL, RunningRouter, pool_with, running_router

FAULTS = "penstock_router_faults_total"


def breaks(*_: object, **__: object) -> None:
    raise ZeroDivisionError("secret")


def ended(how: str, verdict: str = "admitted") -> str:
    return f'penstock_router_requests_total{{ending="{how}",reason="",tier="chat",verdict="{verdict}"}}'


async def test_a_fault_ends_its_own_request_with_its_id_and_a_count(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    let_it_go_on = asyncio.Event()

    async def in_two_parts(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        await let_it_go_on.wait()
        part.output(chat_chunk("two") + DONE)
        part.finish()

    replica = ScriptedReplica("r0", in_two_parts)
    async with running_router(replica) as router:
        other = asyncio.create_task(router.chat(stream=True))
        await eventually(lambda: len(replica.parts) == 1)
        with monkeypatch.context() as patch:
            patch.setattr(ReplicaSet, "loads", breaks)
            reply = await router.chat({"x-request-id": "broken"})
        assert (reply.status_code, reply.headers["x-request-id"]) == (500, "broken")
        assert reply.json()["error"]["message"] == "internal error"
        assert await router.metric(FAULTS) == 1
        let_it_go_on.set()
        assert (await other).text == (chat_chunk("one") + chat_chunk("two") + DONE).decode()
    logged = [line for line in capsys.readouterr().out.splitlines() if "request failed" in line]
    assert len(logged) == 1
    assert "broken" in logged[0]


async def test_a_fault_in_a_stream_is_its_last_event(monkeypatch: pytest.MonkeyPatch) -> None:
    async def is_lost(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        part.fail(wire.FAILURE_ENGINE_REFUSED, 500)

    monkeypatch.setattr(answer, "_error_event", breaks)
    async with running_router(ScriptedReplica("r0", is_lost)) as router:
        reply = await router.chat(stream=True)
        assert b'data: {"error":{"message":"internal error"' in reply.content
        assert await router.metric(FAULTS) == 1


async def test_a_fault_in_counting_does_not_reach_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_router(ScriptedReplica("r0")) as router:
        with monkeypatch.context() as patch:
            patch.setattr(AccessLog, "ended", breaks)
            for stream in (False, True):
                assert (await router.chat(stream=stream)).status_code == 200
            await router.counted(FAULTS, 2)
        assert (await router.chat()).status_code == 200


async def test_a_client_that_disconnects_cancels_also_its_second_request() -> None:
    """Requests may follow one another on a connection without waiting; it is lost for all of them."""
    replica = ScriptedReplica("r0", admits)
    async with running_router(replica) as router:
        with non_reading_client(router, requested=2):
            await eventually(lambda: len(replica.parts) == 1)
        await replica.parts[0].cancelled.wait()
        await router.counted(ended("client_gone"))
        await router.counted("penstock_router_open_requests", 0)


async def admits(part: Part) -> None:
    part.admit()


@contextmanager
def non_reading_client(router: RunningRouter, requested: int = 1, **body: Any) -> Iterator[socket.socket]:
    """A client that sends `requested` requests and reads no answer."""
    raw = orjson.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hi"}], **body})
    host, port = router.address.split(":")
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((host, int(port)))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
        sock.sendall((head.encode() + raw) * requested)
        yield sock


async def writes_and_waits(part: Part) -> None:
    """Fill the buffers between the router and its client within the bound, and never end."""
    part.admit()
    for _ in range(100):
        part.output(chat_chunk("x" * 60_000))
        await asyncio.sleep(0.001)


async def test_a_stalled_client_with_room_left_is_dropped_and_its_work_cancelled() -> None:
    replica = ScriptedReplica("r0", writes_and_waits)
    pool = pool_with(router={"streamBufferBytes": 100_000_000})
    async with running_router(replica, pool=pool, bounds=HttpBounds(write_s=0.1)) as router:
        with non_reading_client(router, stream=True):
            await eventually(lambda: len(replica.parts) == 1 and replica.parts[0].cancelled.is_set())
        await router.counted(ended("client_slow"))
        await router.counted("penstock_router_held_bytes", 0)
        assert await router.metric("penstock_router_open_requests") == 0


async def test_a_whole_answer_that_no_client_reads_is_released() -> None:
    async def answers_at_length(part: Part) -> None:
        part.admit()
        part.output(chat_answer("x" * 20_000_000))
        part.finish()

    replica = ScriptedReplica("r0", answers_at_length)
    async with running_router(replica, bounds=HttpBounds(write_s=0.1)) as router:
        with non_reading_client(router):
            await router.counted(ended("client_slow"))
        await router.counted("penstock_router_held_bytes", 0)


async def test_clients_that_do_not_read_hold_no_more_than_the_budget_between_them() -> None:
    """Each is far within its own bound; those that hold most are dropped, and one that reads is served."""
    replica = ScriptedReplica("r0", writes_and_waits)
    pool = pool_with(router={"streamBufferBytes": 100_000_000, "bufferBytes": 4_000_000})
    async with running_router(replica, pool=pool) as router:
        clients = [non_reading_client(router, stream=True) for _ in range(4)]
        try:
            for each in clients:
                each.__enter__()
            await eventually(lambda: sum(part.cancelled.is_set() for part in replica.parts) >= 2)
            assert await router.metric("penstock_router_held_bytes") <= 4_000_000
            replica.script = quick
            assert (await router.chat()).status_code == 200
        finally:
            for each in clients:
                each.__exit__(None, None, None)
        await router.counted("penstock_router_held_bytes", 0)


async def quick(part: Part) -> None:
    part.admit()
    part.output(chat_answer("hi"))
    part.finish()


async def test_a_body_over_the_budget_is_answered_429_and_read_to_its_end() -> None:
    pool = pool_with(router={"bufferBytes": 10_000})
    async with running_router(ScriptedReplica("r0"), pool=pool) as router:
        reply = await router.chat(x="y" * 1_000_000)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "router_full")
        assert (await router.chat()).status_code == 200
        assert await router.metric("penstock_router_held_bytes") == 0


async def test_refusals_count_only_requests_sent_to_no_replica() -> None:
    async def is_busy(part: Part) -> None:
        part.reject(wire.REASON_PREFILL_BUDGET, 1.5)

    replica = ScriptedReplica("r0", is_busy)
    async with running_router(replica) as router:
        assert (await router.chat()).status_code == 429
        replica.send_snapshot(engine_ready=False)
        await eventually(lambda: not router.replica_set.ready)
        assert (await router.http.get("/ready")).status_code == 503
        assert (await router.chat()).status_code == 503
        for status in (429, 503):
            assert await router.metric(f'penstock_router_refused_total{{status="{status}"}}') == 0
        assert (await router.chat(n=0)).status_code == 400
        assert (await router.http.get("/nowhere")).status_code == 404
        for status in (400, 404):
            assert await router.metric(f'penstock_router_refused_total{{status="{status}"}}') == 1


@pytest.mark.parametrize(
    ("failure", "status", "ending", "retry"),
    [
        (wire.FAILURE_ENGINE_REFUSED, 400, "invalid", "false"),
        (wire.FAILURE_BAD_REQUEST, 422, "invalid", "false"),
        (wire.FAILURE_ENGINE_REFUSED, 429, "invalid", None),
        (wire.FAILURE_ENGINE_REFUSED, 500, "failed", None),
        (wire.FAILURE_INTERNAL, 500, "failed", None),
    ],
)
async def test_an_upstream_error_is_counted_as_the_clients_or_the_engines(
    failure: "wire.Failure.ValueType", status: int, ending: str, retry: str | None
) -> None:
    async def fails(part: Part) -> None:
        part.fail(failure, status, b'{"error":{"message":"no"}}')

    async with running_router(ScriptedReplica("r0", fails)) as router:
        reply = await router.chat()
        assert (reply.status_code, reply.headers.get("x-should-retry")) == (status, retry)
        assert reply.headers["x-request-id"]
        await router.counted(ended(ending, "none"))


NESTED = b'{"error":' + b'{"a":' * 300 + b"1" + b"}" * 301


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "body",
    [b"", b"<html>", b'"no"', b'{"error":7}', b"\xff", NESTED],
    ids=["empty", "html", "text", "no object", "no UTF-8", "nested"],
)
async def test_an_engines_error_of_any_shape_reaches_the_client_in_openais_format(
    body: bytes, stream: bool
) -> None:
    async def fails(part: Part) -> None:
        part.fail(wire.FAILURE_ENGINE_REFUSED, 422, body)

    async def fails_in_its_stream(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("one"))
        part.fail(wire.FAILURE_ENGINE_REFUSED, 422, body)

    said = b'"message":"the engine failed to serve this request"'
    async with running_router(ScriptedReplica("r0", fails_in_its_stream if stream else fails)) as router:
        reply = await router.chat(stream=stream)
        assert reply.status_code == (200 if stream else 422)
        assert said in reply.content
        assert await router.metric(FAULTS) == 0


@pytest.mark.parametrize(
    ("body", "status", "retry"),
    [({"n": 0}, 400, "false"), ({"model": "other"}, 404, "false"), ({"x": "y" * 3000}, 413, "false")],
)
async def test_an_invalid_request_asks_clients_not_to_retry(
    body: dict[str, Any], status: int, retry: str | None
) -> None:
    async with running_router(ScriptedReplica("r0"), pool=pool_with(router={"maxBodyBytes": 2000})) as router:
        reply = await router.chat(**body)
    assert (reply.status_code, reply.headers.get("x-should-retry")) == (status, retry)


async def test_a_stream_that_ends_without_its_last_event_counts_as_answered() -> None:
    async def leaves_out_done(part: Part) -> None:
        part.admit()
        part.output(chat_chunk("hi"))
        part.finish()

    async with running_router(ScriptedReplica("r0", leaves_out_done)) as router:
        reply = await router.chat(stream=True)
        assert reply.content == chat_chunk("hi")
        await router.counted(ended("answered"))


async def test_output_of_a_lost_replica_is_dropped_before_the_next_attempt() -> None:
    async def is_lost_in_its_answer(part: Part) -> None:
        part.admit()
        part.output(chat_answer("x" * 1000))
        part.fail(wire.FAILURE_ENGINE_LOST, 502)

    lost = ScriptedReplica("r0", is_lost_in_its_answer)
    async with running_router(lost, ScriptedReplica("r1")) as router:
        assert (await router.chat()).headers["x-penstock-replica"] == "r1"
        assert len(lost.parts) == 1
        await router.counted("penstock_router_held_bytes", 0)


async def test_a_client_that_falls_behind_and_catches_up_gets_every_byte_in_order() -> None:
    """Output that it cannot take is buffered, and later output does not overtake it."""
    chunks = [chat_chunk(f"{number} " + "x" * 20_000) for number in range(200)]
    reads_again = asyncio.Event()

    async def floods_and_continues(part: Part) -> None:
        part.admit()
        for chunk in chunks[:150]:
            part.output(chunk)
        await reads_again.wait()
        for chunk in chunks[150:]:
            part.output(chunk)
            await asyncio.sleep(0)
        part.output(DONE, tokens=0)
        part.finish()

    pool = pool_with(router={"streamBufferBytes": 100_000_000})
    async with running_router(ScriptedReplica("r0", floods_and_continues), pool=pool) as router:
        with non_reading_client(router, stream=True) as sock:
            while not await router.metric("penstock_router_held_bytes") > len(chunks[0]):  # noqa: ASYNC110
                await asyncio.sleep(0.002)
            sock.setblocking(False)
            reads_again.set()
            answer = b""
            while not answer.endswith(b"0\r\n\r\n"):
                answer += await asyncio.get_running_loop().sock_recv(sock, 2**16)
    assert unchunked(answer.partition(b"\r\n\r\n")[2]) == b"".join([*chunks, DONE])


def unchunked(body: bytes) -> bytes:
    """The body of a chunked response."""
    whole = b""
    while body:
        length, _, body = body.partition(b"\r\n")
        whole, body = whole + body[: int(length, 16)], body[int(length, 16) + 2 :]
    return whole
