"""One request between a session, which fills it, and the task that empties it."""

import asyncio

from loop_time import turns
from penstock_core.domain.verdict import BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_routing.replicas.upstream_request import Lost, Overflowed, UpstreamRequest


async def test_output_since_the_last_read_is_taken_in_one_piece() -> None:
    upstream = UpstreamRequest(1)
    upstream.put(b"a", 1)
    upstream.put(b"b", 0)
    upstream.put(b"c", 2)
    assert upstream.take() == (b"abc", 3, None)
    assert upstream.take() == (b"", 0, None)


async def test_a_waiting_task_is_woken_once_for_many_events() -> None:
    upstream, woken = UpstreamRequest(1), 0

    async def waits() -> None:
        nonlocal woken
        while upstream.end is None:
            await upstream.changed()
            woken += 1

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    upstream.accepted(BestEffort())
    for _ in range(10):
        upstream.put(b"x", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == 1
    upstream.finish(Lost("r0", "gone"))
    await task
    assert woken == 2


async def test_an_event_before_the_wait_ends_it() -> None:
    upstream = UpstreamRequest(1)
    upstream.put(b"x", 1)
    async with asyncio.timeout(5):
        await upstream.changed()


async def test_the_first_end_is_kept() -> None:
    upstream = UpstreamRequest(1)
    upstream.finish(Rejected(Reason.NEVER))
    upstream.finish(Lost("r0", "late"))
    assert upstream.end == Rejected(Reason.NEVER)


async def test_a_full_buffer_ends_the_request_and_frees_the_writer() -> None:
    freed: list[bool] = []
    upstream = UpstreamRequest(1, bound_bytes=10, on_overflow=lambda: freed.append(True))
    assert upstream.put(b"12345678", 1)
    assert upstream.put(b"90", 1)
    assert not upstream.put(b"x", 1)
    assert freed == [True]
    assert upstream.take() == (b"1234567890", 2, Overflowed())


async def test_one_long_piece_does_not_count_as_a_slow_client() -> None:
    upstream = UpstreamRequest(1, bound_bytes=10)
    assert upstream.put(b"x" * 100, 1)
    assert upstream.take().data == b"x" * 100
    assert upstream.put(b"y" * 100, 1)


async def test_a_burst_before_a_waiting_tasks_turn_does_not_count_as_a_slow_client() -> None:
    upstream = UpstreamRequest(1, bound_bytes=10)
    waiting = asyncio.create_task(upstream.changed())
    await asyncio.sleep(0)
    assert all(upstream.put(b"12345678", 1) for _ in range(5))
    await waiting
    assert not upstream.put(b"12345678", 1), "from then on the task is busy with what it has not taken"
    assert isinstance(upstream.end, Overflowed)


async def test_a_finished_request_keeps_the_output_before_its_end() -> None:
    upstream, end = UpstreamRequest(1), wire.Finished(prompt_tokens=3)
    upstream.put(b"x", 1)
    upstream.finish(end)
    assert upstream.take() == (b"x", 1, end)


def waits(upstream: UpstreamRequest) -> bool:
    """Return whether no event has arrived."""
    waiting = upstream.changed()
    try:
        waiting.send(None)
    except StopIteration:
        return False
    waiting.close()
    return True


async def test_a_known_event_is_not_reported_again() -> None:
    upstream = UpstreamRequest(1)
    assert waits(upstream)
    upstream.put(b"x", 1)
    upstream.take()
    assert waits(upstream)
    upstream.put(b"y", 1)
    assert not waits(upstream)
    assert waits(upstream)
    upstream.accepted(BestEffort())
    assert not waits(upstream)


async def test_a_released_request_holds_no_bytes() -> None:
    upstream = UpstreamRequest(1, bound_bytes=10)
    upstream.put(b"12345", 2)
    assert (upstream.held_bytes, upstream.has_output) == (5, True)
    upstream.release()
    assert (upstream.held_bytes, upstream.has_output) == (0, False)
    assert upstream.take() == (b"", 0, None)
    assert upstream.put(b"1234567890", 1)
    assert upstream.put(b"", 0)


async def test_only_streamed_requests_have_a_bound() -> None:
    assert UpstreamRequest(1, bound_bytes=0).streamed
    assert not UpstreamRequest(1).streamed


def test_a_lost_replica_may_have_begun_the_request_unless_stated() -> None:
    assert Lost("r0", "gone").reached


class Client:
    """The sink of output. behind: it accepts no output now."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, int]] = []
        self.behind = False

    def relay(self, data: bytes, tokens: int) -> bool:
        if not self.behind:
            self.taken.append((data, tokens))
        return not self.behind


async def test_output_is_relayed_without_waking_the_waiting_task() -> None:
    upstream, client = UpstreamRequest(1, bound_bytes=10), Client()
    waiting = asyncio.create_task(upstream.changed(client.relay))
    await turns()
    for _ in range(3):
        assert upstream.put(b"x" * 100, 1)
    await turns()
    assert client.taken == [(b"x" * 100, 1)] * 3
    assert not waiting.done()
    upstream.finish(wire.Finished())
    await waiting
    assert upstream.take() == (b"", 0, wire.Finished())


async def test_output_that_the_client_cannot_read_is_buffered_and_wakes_the_task() -> None:
    upstream, client = UpstreamRequest(1), Client()
    waiting = asyncio.create_task(upstream.changed(client.relay))
    await turns()
    client.behind = True
    upstream.put(b"a", 1)
    await waiting
    assert upstream.take() == (b"a", 1, None)


async def test_output_stays_in_order_behind_buffered_output_and_writes() -> None:
    upstream, client = UpstreamRequest(1), Client()
    waiting = asyncio.create_task(upstream.changed(client.relay))
    await turns()
    client.behind = True
    upstream.put(b"a", 1)
    client.behind = False
    upstream.put(b"b", 1)
    await waiting
    assert upstream.take() == (b"ab", 2, None)
    upstream.put(b"c", 1)  # while the task writes
    assert (client.taken, upstream.take()) == ([], (b"c", 1, None))


async def test_output_is_not_relayed_for_a_cancelled_task() -> None:
    upstream, client = UpstreamRequest(1), Client()
    waiting = asyncio.create_task(upstream.changed(client.relay))
    await turns()
    waiting.cancel()
    await asyncio.wait({waiting})
    upstream.put(b"a", 1)
    assert (client.taken, upstream.take().data) == ([], b"a")
