import asyncio
from dataclasses import replace
from typing import Any

import pytest
from loop_time import skip
from penstock_proto import replica_pb2 as wire
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.frames.outbox import EVENT_BYTES, Outbox, Urgency

BOUNDS = replace(Bounds(), outbox_bytes=10_000, frame_bytes=2_000, unbatched_requests=1, not_urgent_s=1e6)


class Desk:
    """An outbox with a state that a test can change."""

    def __init__(self, open_requests: int = 5, **bounds: Any) -> None:
        self.state = wire.Snapshot(running=1)
        self.open_requests = open_requests
        self.outpaced: list[int] = []
        self.box = Outbox(
            replace(BOUNDS, **bounds), lambda: self.state, lambda: self.open_requests, self.outpaced.append
        )

    def put(self, id: int, size: int = 10, urgency: Urgency = Urgency.STEP) -> None:
        output = wire.Output(data=b"x" * size, tokens=1)
        self.box.put(wire.Event(id=id, output=output), size, urgency)

    async def frame(self) -> wire.ReplicaFrame:
        async with asyncio.timeout(20):
            frame = await self.box.frame()
        assert frame is not None
        return frame

    async def ids(self) -> list[int]:
        return [event.id for event in (await self.frame()).events]


async def opened(open_requests: int = 5, **bounds: Any) -> Desk:
    """After the first frame, which has only the replica's state."""
    desk = Desk(open_requests, **bounds)
    assert await desk.ids() == []
    return desk


async def test_output_of_one_step_shares_a_frame() -> None:
    desk = await opened()
    taking = asyncio.ensure_future(desk.ids())
    await asyncio.sleep(0)
    for id in range(5):
        desk.put(id)
    assert await taking == [0, 1, 2, 3, 4]


async def test_urgent_output_waits_only_for_turns_of_the_event_loop() -> None:
    desk = await opened()
    desk.put(1, urgency=Urgency.IMMEDIATE)
    taking = asyncio.ensure_future(desk.ids())
    for _ in range(3):
        await asyncio.sleep(0)
    assert taking.done()
    assert await taking == [1]


async def test_output_that_waits_for_others_is_sent_if_none_arrives() -> None:
    desk = await opened(step_s=1e6)
    desk.put(1)
    taking = asyncio.ensure_future(desk.ids())
    await skip(0.9e6)
    assert not taking.done()
    desk.put(2, urgency=Urgency.IMMEDIATE)
    assert await taking == [1, 2]


@pytest.mark.parametrize("urgencies", [(Urgency.IMMEDIATE, Urgency.STEP), (Urgency.NONE, Urgency.IMMEDIATE)])
async def test_urgent_events_are_sent_immediately_with_all_others(
    urgencies: tuple[Urgency, Urgency],
) -> None:
    desk = await opened(step_s=1e6)
    for id, urgency in enumerate(urgencies):
        desk.put(id, urgency=urgency)
    assert await desk.ids() == [0, 1]


async def test_a_frame_includes_events_of_the_same_turn_of_the_loop() -> None:
    desk = await opened()
    taking = asyncio.ensure_future(desk.ids())
    await asyncio.sleep(0)
    desk.put(1, urgency=Urgency.IMMEDIATE)
    asyncio.get_running_loop().call_soon(desk.put, 2, 10, Urgency.IMMEDIATE)
    assert await taking == [1, 2]


@pytest.mark.parametrize("open_requests", [1, 5])
async def test_events_without_urgency_wait_for_output(open_requests: int) -> None:
    desk = await opened(open_requests)
    desk.put(1, urgency=Urgency.NONE)
    taking = asyncio.ensure_future(desk.ids())
    await skip(0.9e6)
    assert not taking.done()
    desk.put(2, urgency=Urgency.STEP)
    assert await taking == [1, 2]


async def test_a_timer_that_is_due_at_once_may_be_set_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """uvloop's `call_at` returns a plain handle, without a time, where the process was paused before it."""
    desk = await opened()
    loop = asyncio.get_running_loop()
    with monkeypatch.context() as paused:
        paused.setattr(loop, "call_at", lambda at_s, call: loop.call_soon(call))
        desk.put(1, urgency=Urgency.NONE)
        desk.put(2, urgency=Urgency.STEP)
    assert await desk.ids() == [1, 2]


async def test_events_without_urgency_are_finally_sent_alone() -> None:
    desk = await opened(step_s=1e6, not_urgent_s=0.001)
    desk.put(1, urgency=Urgency.NONE)
    assert await desk.ids() == [1]


async def test_a_single_event_does_not_wait() -> None:
    desk = await opened(open_requests=1, step_s=1e6)
    desk.put(1)
    assert await desk.ids() == [1]


async def test_a_full_frame_does_not_wait_and_frames_are_bounded() -> None:
    desk = await opened(step_s=1e6)
    for id in range(9):
        desk.put(id, 500)
    frames = [await desk.ids() for _ in range(3)]
    assert frames == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


async def test_a_frame_has_the_snapshot() -> None:
    desk = await opened()
    desk.state = wire.Snapshot(running=7)
    desk.put(1)
    assert (await desk.frame()).snapshot.running == 7


async def test_if_no_order_reads_snapshots_verdicts_and_ends_have_one_and_output_has_none() -> None:
    desk = await opened(fresh_snapshots=False)
    desk.box.output(1, b"x", 1, Urgency.IMMEDIATE)
    assert not (await desk.frame()).HasField("snapshot")
    desk.state = wire.Snapshot(running=7)
    desk.box.output(1, b"x", 1, Urgency.NONE)
    desk.box.put(wire.Event(id=1, finished=wire.Finished()), urgency=Urgency.IMMEDIATE)
    assert (await desk.frame()).snapshot.running == 7
    desk.state = wire.Snapshot(running=8)
    desk.box.send_changes()
    assert (await desk.frame()).snapshot.running == 8


async def test_a_changed_snapshot_is_sent_alone_and_an_unchanged_one_is_not() -> None:
    desk = await opened()
    desk.box.send_changes()
    taking = asyncio.ensure_future(desk.frame())
    await skip(1e6)
    assert not taking.done()
    desk.state = wire.Snapshot(running=2)
    desk.box.send_changes()
    frame = await taking
    assert (len(frame.events), frame.snapshot.running) == (0, 2)


async def test_changes_are_sent_alone_within_their_time() -> None:
    desk = await opened()
    desk.state = wire.Snapshot(running=2)
    desk.box.send_within(0.001)
    frame = await desk.frame()
    assert (len(frame.events), frame.snapshot.running) == (0, 2)


async def test_changes_are_sent_with_earlier_events_in_one_frame() -> None:
    desk = await opened()
    desk.box.send_within(60)
    desk.put(1, urgency=Urgency.IMMEDIATE)
    assert await desk.ids() == [1]
    taking = asyncio.ensure_future(desk.frame())
    await skip(1e6)
    assert not taking.done()
    taking.cancel()


async def test_a_router_that_does_not_read_reaches_its_bound() -> None:
    desk = await opened()
    for id in range(20):
        desk.put(id, 500)
        assert desk.box.behind.is_set() == (id >= 17)
    assert desk.box.empty


async def test_one_request_with_most_of_the_bytes_fails_alone() -> None:
    desk = await opened()
    desk.put(2, 1500)
    desk.box.put(wire.Event(id=1, admitted=wire.Admitted()))
    for _ in range(12):
        desk.put(1, 600)
    desk.box.put(wire.Event(id=1, finished=wire.Finished()))
    desk.box.put(wire.Event(id=3, failed=wire.Failed(body=b"y" * 200)), 200)
    desk.put(2, 1000)
    assert not desk.box.behind.is_set()
    failed = 1500 + 200 + 1000 + 5 * EVENT_BYTES
    assert failed < desk.box.buffered_bytes < failed + 300
    desk.put(2, 10)
    desk.box.close()
    events: list[wire.Event] = []
    while frame := await desk.box.frame():
        events += frame.events
    kinds = [(event.id, event.WhichOneof("kind")) for event in events]
    ends = [(3, "failed"), (2, "output"), (1, "failed"), (2, "output")]
    assert kinds == [(2, "output"), (1, "admitted"), *ends]
    assert events[4].failed.failure == wire.FAILURE_ENGINE_LOST
    assert desk.outpaced == [1]


async def test_half_of_the_bytes_are_not_most_of_them() -> None:
    desk = await opened(outbox_bytes=2000)
    desk.put(1, 1000)
    desk.put(2, 1000)
    assert desk.box.behind.is_set()
    await asyncio.sleep(0)
    assert desk.outpaced == []


async def test_a_closed_outbox_returns_its_events_and_accepts_none() -> None:
    desk = await opened(step_s=1e6)
    desk.put(1)
    desk.box.close()
    desk.put(2)
    assert await desk.ids() == [1]
    assert await desk.box.frame() is None


async def test_output_joins_a_waiting_frame_with_later_additions() -> None:
    desk = await opened(step_s=1e6, not_urgent_s=1e9)
    desk.put(1)
    desk.put(2, urgency=Urgency.NONE)
    desk.open_requests = 1
    desk.put(3)  # alone in its session it would go by itself
    taking = asyncio.ensure_future(desk.box.frame())
    await skip(0.9e6)
    assert not taking.done()
    await skip(0.2e6)
    frame = await taking
    assert frame is not None
    assert [event.id for event in frame.events] == [1, 2, 3]


async def test_a_closed_outbox_still_sends_the_snapshot_that_was_due() -> None:
    desk = await opened()
    desk.box.send_within(60)
    desk.box.close()
    assert (await desk.frame()).HasField("snapshot")
    assert await desk.box.frame() is None


@pytest.mark.parametrize("within", [False, True], ids=["now", "soon"])
async def test_a_pending_change_is_sent_before_the_end(within: bool) -> None:
    desk = await opened()
    desk.state = wire.Snapshot(running=2)
    if within:
        desk.box.send_within(1e6)
    else:
        desk.box.send_changes()
    desk.box.close()
    assert (await desk.frame()).snapshot.running == 2
    assert await desk.box.frame() is None
