"""A loop's clock that tests move."""

import asyncio

from loop_time import freeze, skip, thaw, turns


async def test_stopped_time_advances_only_by_skips() -> None:
    loop = asyncio.get_running_loop()
    freeze()
    began_s = loop.time()
    assert began_s == int(began_s)
    waiting = asyncio.create_task(asyncio.sleep(10))
    await turns()
    await skip(9.5)
    assert (loop.time(), waiting.done()) == (began_s + 9.5, False)
    await skip(0.5)
    assert waiting.done()
    thaw()
    assert "time" not in vars(loop)


async def test_time_that_was_not_stopped_need_not_be_resumed() -> None:
    thaw()
    assert asyncio.get_running_loop().time() > 0
