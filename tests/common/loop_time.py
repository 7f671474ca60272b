"""The clock of an event loop, advanced by the test: timers fire without real waiting."""

import asyncio
from math import ceil

TURNS = 20
"""More turns of the event loop than any ready task takes."""


async def turns() -> None:
    """Run all ready callbacks, and those that they make ready."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def skip(seconds: float) -> None:
    """Advance the running loop's clock, and run all callbacks that are due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    setattr(loop, "time", lambda: now() + seconds)  # noqa: B010 - a method, and only this loop's
    await turns()


def freeze() -> None:
    """Stop the running loop's clock at a whole second: only `skip` advances it."""
    loop = asyncio.get_running_loop()
    now_s = float(ceil(loop.time()))
    setattr(loop, "time", lambda: now_s)  # noqa: B010 - a method, and only this loop's


def thaw() -> None:
    """Restore the running loop's own clock."""
    vars(asyncio.get_running_loop()).pop("time", None)
