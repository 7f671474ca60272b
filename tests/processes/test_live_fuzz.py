"""No message of one peer, over HTTP or gRPC, changes another's stream by a byte.

Each case is made from a seed and its number. `make fuzz CASES=5000 SEED=7` tries others, and
`make fuzz SEED=7 FIRST=132 CASES=1` one of them again.
"""

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import cast

import grpc
import pytest
from hostile.bodies import CHAT, Body, make_body
from hostile.frames import Frames, make_frames, make_http2
from hostile.http_bytes import Exchange, make_exchange
from live import raw_client
from live.concurrent_streams import ConcurrentStreams
from live.pool import LivePool
from live.raw_http import Answer, chat, post
from patience import PATIENCE_S
from penstock_proto import replica_pb2 as wire

SEED = os.environ.get("PENSTOCK_FUZZ_SEED", "0")
CASES = int(os.environ.get("PENSTOCK_FUZZ_CASES", "400"))
FIRST = int(os.environ.get("PENSTOCK_FUZZ_FIRST", "0"))
AT_ONCE = 12
SHOWN_BYTES = 2000

ANSWERED = {200, 400, 403, 404, 405, 408, 413, 415, 422, 429, 431}
SESSION = "/penstock.v1.Replica/Session"

pytestmark = pytest.mark.timeout(300 + CASES)


@dataclass(frozen=True, slots=True)
class Target:
    """Where cases are sent: the router's address, and a sidecar's."""

    router: tuple[str, int]
    sidecar: tuple[str, int]


@pytest.fixture(scope="module")
def fuzzed(shared_pool: LivePool) -> LivePool:
    """The shared pool, and a router of small bounds beside `main`."""
    shared_pool.restore()
    bounds = {"maxBodyBytes": 1 << 20, "maxHeaderBytes": 16_384, "bodyTimeout": "1s", "writeTimeout": "5s"}
    shared_pool.start_router("fuzzed", router=bounds)
    return shared_pool


@pytest.fixture
def quiet_logs(fuzzed: LivePool) -> Iterator[None]:
    """No process has logged a traceback when the test ends, beyond those of tests before."""
    before = traces(fuzzed)
    yield
    assert traces(fuzzed)[len(before) :] == []


def traces(pool: LivePool) -> list[str]:
    """Return the lines around each traceback in the logs, in the order of the processes."""
    found = re.compile(r".*\n?.*Traceback(?:.|\n){0,2000}")
    return [f"{name}: {trace}" for name, text in pool.logs() for trace in found.findall(text)]


Case = tuple[object, Callable[[], Awaitable[None]]]


async def beside_victims(pool: LivePool, make: Callable[[Random, Target], Case]) -> None:
    """Run the cases concurrently; fail if one is not answered, or another stream is affected."""
    target = Target(pool.address("router", "fuzzed"), pool.address("sidecar", "r0"))
    numbers = iter(range(FIRST, FIRST + CASES))
    under_way: dict[int, object] = {}

    async def work() -> None:
        for number in numbers:
            if streams.harmed:
                return
            case, carry_out = make(Random(f"{SEED} {number}"), target)
            under_way[number] = case
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await carry_out()
            except Exception as error:
                error.add_note(shown(number, case))
                raise
            del under_way[number]

    streams = ConcurrentStreams([pool.url("main"), pool.url("fuzzed")])
    async with streams.running(), asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(work())
    cases = "\n".join(shown(number, case) for number, case in under_way.items())
    assert not streams.harmed, f"{streams.harmed[0]}\nwhile these were under way:\n{cases}"
    assert streams.finished >= 2 * streams.streams_each


def shown(number: int, case: object) -> str:
    """Return the command that repeats the case, and its bytes."""
    text = repr(case)
    more = f"… ({len(text)} characters)" if len(text) > SHOWN_BYTES else ""
    return f"make fuzz SEED={SEED} FIRST={number} CASES=1\n{text[:SHOWN_BYTES]}{more}"


# HTTP to the router.


def body_case(random: Random, target: Target) -> Case:
    body = make_body(random)
    return body, lambda: send_body(target, body)


async def send_body(target: Target, body: Body) -> None:
    """It is answered once."""
    request = post(body.path, body.data, *body.headers)
    (answer,) = await raw_client.exchange(target.router, [request], answers=1)
    check(answer)


def exchange_case(random: Random, target: Target) -> Case:
    misuse = make_exchange(random)
    return misuse, lambda: misuse_http(target, misuse)


async def misuse_http(target: Target, misuse: Exchange) -> None:
    """Each answer that comes is one, and the connection ends."""
    answers = await raw_client.exchange(
        target.router, misuse.pieces, half_closes=misuse.half_closes, leaves=misuse.leaves
    )
    for answer in answers:
        check(answer)


def check(answer: Answer) -> None:
    """A normal answer, or an error in OpenAI's format without a trace of our code."""
    assert answer.status in ANSWERED, answer
    if answer.status != 200:
        assert answer.error["message"], answer
        assert b"Traceback" not in answer.body
        assert b".py" not in answer.body
    elif answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.body.endswith(b"data: [DONE]\n\n"), answer
        assert b'"error"' not in answer.body
    else:
        assert isinstance(json.loads(answer.body), dict)


async def test_no_body_affects_another_stream(fuzzed: LivePool, quiet_logs: None) -> None:
    await beside_victims(fuzzed, body_case)


async def test_no_misuse_of_http_affects_another_stream(fuzzed: LivePool, quiet_logs: None) -> None:
    await beside_victims(fuzzed, exchange_case)


# gRPC to a sidecar.


def frames_case(random: Random, target: Target) -> Case:
    frames = make_frames(random)
    return frames, lambda: send_frames(target, frames)


async def send_frames(target: Target, frames: Frames) -> None:
    """The session ends, with a status or in order, and the next one is served."""
    async with channel(target) as open_channel:
        session = session_of(open_channel)(in_turn(frames.frames))
        if frames.cancels:
            session.cancel()
        try:
            async for _ in session:
                pass
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise


async def in_turn(frames: Sequence[bytes]) -> AsyncIterator[bytes]:
    for frame in frames:
        yield frame


def channel(target: Target) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel("{}:{}".format(*target.sidecar), [("grpc.use_local_subchannel_pool", 1)])


def session_of(channel: grpc.aio.Channel) -> "grpc.aio.StreamStreamMultiCallable[bytes, bytes]":
    """The call, with frames as bytes in both directions."""
    return cast("grpc.aio.StreamStreamMultiCallable[bytes, bytes]", channel.stream_stream(SESSION))


def http2_case(random: Random, target: Target) -> Case:
    sent = make_http2(random)
    return sent, lambda: send_http2(target, sent)


async def send_http2(target: Target, sent: bytes) -> None:
    """The connection may stay open, since a peer of HTTP/2 may be slow: the client leaves it."""
    await raw_client.exchange(target.sidecar, [sent], leaves=True)


def grpc_case(random: Random, target: Target) -> Case:
    return random.choice((frames_case, frames_case, http2_case))(random, target)


async def test_no_frame_of_one_session_affects_another(fuzzed: LivePool, quiet_logs: None) -> None:
    await beside_victims(fuzzed, grpc_case)
    target = Target(("", 0), fuzzed.address("sidecar", "r0"))
    submit = wire.Submit(
        id=1, endpoint=wire.ENDPOINT_CHAT_COMPLETIONS, body=chat(stream=True), tier="chat", hop=1
    )
    frame = wire.RouterFrame(submits=[submit]).SerializeToString()
    async with channel(target) as open_channel:
        session = session_of(open_channel)()
        await session.write(frame)
        kinds = []
        async for data in session:
            kinds += [event.WhichOneof("kind") for event in wire.ReplicaFrame.FromString(data).events]
            if "finished" in kinds:
                break
        session.cancel()
    assert (kinds[0], kinds[-1]) == ("admitted", "finished")


def test_the_pool_still_serves_after_all_misuse(fuzzed: LivePool) -> None:
    assert fuzzed.router_value("penstock_router_faults_total", "fuzzed") == 0
    assert fuzzed.ready_replicas("fuzzed") == set(fuzzed.replicas)
    answer = raw_client.exchange(fuzzed.address("router", "fuzzed"), [post(CHAT, chat())], answers=1)
    assert asyncio.run(answer)[0].status == 200
