"""One request between a session, which fills it, and the task that empties it."""

import asyncio

from penstock_core.domain.verdict import BestEffort, Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_router.exchange import Exchange, Lost, Overflowed


async def test_what_a_frame_brings_is_taken_in_one_piece() -> None:
    exchange = Exchange(1)
    exchange.put(b"a", 1)
    exchange.put(b"b", 0)
    exchange.put(b"c", 2)
    assert exchange.take() == (b"abc", 3, None)
    assert exchange.take() == (b"", 0, None)


async def test_a_waiting_task_is_woken_once_for_many_events() -> None:
    exchange, woken = Exchange(1), 0

    async def waits() -> None:
        nonlocal woken
        while exchange.end is None:
            await exchange.changed()
            woken += 1

    task = asyncio.create_task(waits())
    await asyncio.sleep(0)
    exchange.accepted(BestEffort())
    for _ in range(10):
        exchange.put(b"x", 1)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert woken == 1
    exchange.finish(Lost("r0", "gone"))
    await task
    assert woken == 2


async def test_news_before_the_wait_is_not_waited_for() -> None:
    exchange = Exchange(1)
    exchange.put(b"x", 1)
    async with asyncio.timeout(5):
        await exchange.changed()


async def test_the_first_end_stands() -> None:
    exchange = Exchange(1)
    exchange.finish(Rejected(Reason.NEVER))
    exchange.finish(Lost("r0", "late"))
    assert exchange.end == Rejected(Reason.NEVER)


async def test_a_full_buffer_ends_it_and_frees_the_writer() -> None:
    freed: list[bool] = []
    exchange = Exchange(1, bound_bytes=10, on_overflow=lambda: freed.append(True))
    assert exchange.put(b"12345678", 1)
    assert exchange.put(b"90", 1)
    assert not exchange.put(b"x", 1)
    assert freed == [True]
    assert exchange.take() == (b"1234567890", 2, Overflowed())


async def test_one_long_piece_is_no_slow_client() -> None:
    exchange = Exchange(1, bound_bytes=10)
    assert exchange.put(b"x" * 100, 1)
    assert exchange.take().data == b"x" * 100
    assert exchange.put(b"y" * 100, 1)


async def test_a_finished_exchange_keeps_what_came_before_its_end() -> None:
    exchange, end = Exchange(1), wire.Finished(prompt_tokens=3)
    exchange.put(b"x", 1)
    exchange.finish(end)
    assert exchange.take() == (b"x", 1, end)
