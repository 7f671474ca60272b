"""The queue of pools to reconcile: one entry per pool, delays and backoff."""

import asyncio

import uvloop
from penstock_operator.reconcile.workqueue import BASE_BACKOFF_S, MAX_BACKOFF_S, WorkQueue


async def test_a_key_added_often_is_taken_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    assert await queue.take() == "a"
    assert len(queue) == 0


async def test_a_key_added_while_taken_is_queued_again_when_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    await queue.take()
    queue.add("a")
    assert len(queue) == 0
    queue.done("a")
    assert await queue.take() == "a"


async def test_taking_waits_for_a_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    taking = asyncio.create_task(queue.take())
    await asyncio.sleep(0)
    queue.add("a")
    assert await taking == "a"


async def test_the_earliest_due_time_counts() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_later("a", 3600)
    queue.add_later("a", 0)
    async with asyncio.timeout(5):
        assert await queue.take() == "a"
    queue.done("a")
    queue.add_later("b", 3600)
    queue.add("b")
    assert await queue.take() == "b"
    queue.done("b")
    assert len(queue) == 0


async def test_the_backoff_doubles_up_to_a_bound_and_is_reset_by_success() -> None:
    queue: WorkQueue[str] = WorkQueue()
    pauses = [queue.failed("a") for _ in range(12)]
    assert pauses[:3] == [BASE_BACKOFF_S, 2 * BASE_BACKOFF_S, 4 * BASE_BACKOFF_S]
    assert pauses[-1] == MAX_BACKOFF_S
    queue.succeeded("a")
    assert queue.failed("a") == BASE_BACKOFF_S
    queue.close()


async def test_a_removed_key_is_not_queued_later() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_later("a", 0)
    queue.forget("a")
    queue.add_later("b", 0)
    async with asyncio.timeout(5):
        assert await queue.take() == "b"
    assert len(queue) == 0


def test_a_key_that_is_due_may_be_added_again_before_it_is_taken() -> None:
    """With uvloop, the handle of a due timer has no time."""

    async def taken() -> str:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_later("a", 0.0)
        queue.add_later("a", 0.0)
        return await queue.take()

    assert uvloop.run(taken()) == "a"
