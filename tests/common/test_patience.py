"""Waits return the condition's value, and name the condition that was never true."""

import asyncio

import pytest
from patience import answered, eventually, until


def test_until_returns_the_first_true_value() -> None:
    looks = iter([None, 0, "found"])
    assert until(lambda: next(looks)) == "found"


def test_a_condition_that_never_holds_is_named() -> None:
    with pytest.raises(AssertionError, match="never saw: a miracle"):
        until(lambda: False, "a miracle", within_s=0)


def test_a_condition_without_a_name_is_named_by_its_place() -> None:
    with pytest.raises(AssertionError, match=r"test_patience\.py:"):
        until(lambda: False, within_s=0)


async def test_other_tasks_run_while_a_coroutine_waits() -> None:
    done: list[str] = []
    asyncio.get_running_loop().call_soon(done.append, "this")
    assert await eventually(lambda: done) == ["this"]


async def test_a_coroutine_is_awaited_again_until_its_result_is_true() -> None:
    answers = iter([None, "yes"])

    async def ask() -> str | None:
        return next(answers)

    assert await answered(ask) == "yes"
    with pytest.raises(AssertionError, match=r"test_patience\.py:"):
        await eventually(lambda: False, within_s=0)
