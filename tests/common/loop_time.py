"""Time of an event loop that a test moves: timers come due without waiting for them."""

import asyncio
from math import ceil

TURNS = 20
"""More turns of the loop than anything takes that is ready."""


async def turns() -> None:
    """Run everything that is ready, and what that makes ready."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def skip(seconds: float) -> None:
    """Move the running loop's clock, and run what has come due."""
    loop = asyncio.get_running_loop()
    now = loop.time
    setattr(loop, "time", lambda: now() + seconds)  # noqa: B010 - a method, and only this loop's
    await turns()


def freeze() -> None:
    """Stop the running loop's clock, at a whole second: only `skip` moves it, however busy the machine is."""
    loop = asyncio.get_running_loop()
    now_s = float(ceil(loop.time()))
    setattr(loop, "time", lambda: now_s)  # noqa: B010 - a method, and only this loop's


def thaw() -> None:
    """Give the running loop its own clock back."""
    vars(asyncio.get_running_loop()).pop("time", None)
