import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from penstock_core.domain.slo import Tier
from penstock_pool import serving_spec as pool_bound
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.session_writer import (
    FRAME_BYTES,
    Attempt,
    SessionWriter,
)
from penstock_routing.request.generation_request import GenerationRequest
from penstock_routing.settings import MOST_BODY_BYTES, settings_of
from penstock_runtime.grpc.messages import MESSAGE_BYTES
from scripted.router import pool_with


def attempt(body: bytes = b"{}", arrival_s: float = 0.0) -> Attempt:
    return Attempt(
        GenerationRequest("r", wire.ENDPOINT_COMPLETIONS, body, Tier("chat"), arrival_s), hop=1, backup=False
    )


class Wire:
    """A call that records its writes, each of which waits at a gate."""

    def __init__(self) -> None:
        self.frames: list[wire.RouterFrame] = []
        self.open = asyncio.Event()
        self.open.set()

    async def write(self, frame: wire.RouterFrame) -> None:
        self.frames.append(frame)
        await self.open.wait()

    @property
    def ids(self) -> list[list[int]]:
        return [[submit.id for submit in frame.submits] for frame in self.frames]


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@asynccontextmanager
async def writing(now_s: float = 0.0) -> AsyncIterator[tuple[SessionWriter, Wire]]:
    writer, out = SessionWriter(lambda: now_s), Wire()
    running = asyncio.create_task(writer.run(out.write))
    await turns(2)
    try:
        yield writer, out
    finally:
        running.cancel()
        await asyncio.wait({running})


async def test_requests_of_adjacent_loop_turns_share_a_frame() -> None:
    async with writing() as (writer, out):
        writer.submit(1, attempt())
        asyncio.get_running_loop().call_soon(writer.submit, 2, attempt())
        await turns(4)
        assert out.ids == [[1, 2]]


async def test_messages_that_arrive_during_a_write_share_the_next_frame() -> None:
    async with writing() as (writer, out):
        out.open.clear()
        writer.submit(1, attempt())
        await turns(4)
        for id in (2, 3):
            writer.submit(id, attempt())
            await turns(2)
        out.open.set()
        await turns(4)
        assert out.ids == [[1], [2, 3]]


async def test_a_request_cancelled_before_its_frame_is_never_sent() -> None:
    async with writing() as (writer, out):
        writer.submit(1, attempt())
        writer.submit(2, attempt())
        writer.cancel(1)
        await turns(4)
        writer.cancel(2)
        await turns(4)
        assert out.ids == [[2], []]
        assert [list(frame.cancels) for frame in out.frames] == [[], [2]]


async def test_a_frame_is_closed_once_it_is_long() -> None:
    async with writing() as (writer, out):
        for id in (1, 2, 3):
            writer.submit(id, attempt(b"x" * (FRAME_BYTES // 2)))
        await turns(4)
        assert out.ids == [[1, 2], [3]]


async def test_the_time_a_request_has_spent_is_computed_when_its_frame_is_made() -> None:
    async with writing(now_s=5.0) as (writer, out):
        writer.submit(1, attempt(arrival_s=4.75))
        await turns(4)
        assert out.frames[0].submits[0].spent_s == 0.25


async def test_the_longest_frame_is_within_a_message() -> None:
    """One that was not would end the session, and every request on it."""
    async with writing() as (writer, out):
        small = b"x" * 100
        for id in range(FRAME_BYTES // len(small)):
            writer.submit(id, attempt(small))
        writer.submit(1_000_000, attempt(b"x" * MOST_BODY_BYTES))
        await turns(4)
        assert out.ids[0][-1] == 1_000_000
        assert out.frames[0].ByteSize() <= MESSAGE_BYTES


def test_the_longest_body_fits_a_frame_whatever_the_pools_bound() -> None:
    """A pool may have been stored before its schema had a bound."""
    pool = pool_with(router={"maxBodyBytes": pool_bound.MOST_BODY_BYTES})
    assert settings_of(pool).max_body_bytes == MOST_BODY_BYTES == pool_bound.MOST_BODY_BYTES
    vars(pool.spec.router)["max_body_bytes"] = 2**30
    assert settings_of(pool).max_body_bytes == MOST_BODY_BYTES


async def test_states_of_answers_read_at_the_engine_are_sent_before_cancels() -> None:
    async with writing() as (writer, out):
        writer.answered(wire.EngineAnswer(id=1, state=wire.ANSWER_STATE_FULL))
        await turns(4)
        writer.answered(wire.EngineAnswer(id=2, state=wire.ANSWER_STATE_LOST))
        writer.cancel(2)
        await turns(4)
    assert [[answer.id for answer in frame.engine_answers] for frame in out.frames] == [[1], [2]]
    assert [list(frame.cancels) for frame in out.frames] == [[], [2]]
