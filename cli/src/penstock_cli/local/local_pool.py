"""A whole pool on this machine: started, waited for, kept alive, stopped in order."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from penstock_pool import Pool

from penstock_cli.failure import Failure
from penstock_cli.local.child import Child, LogSink
from penstock_cli.local.layout import Layout, Role, Wanted, lay_out

POLL_S = 0.1
STOP_GRACE_S = 5.0
"""Beyond the drain that the pool allows, for the process itself to end."""


@asynccontextmanager
async def local_pool(
    wanted: Wanted,
    sink: LogSink,
    drain_s: float,
    on_progress: Callable[[int, int], None],
    pool: Pool | None = None,
) -> AsyncIterator[Layout]:
    """The pool, ready for requests, for as long as the block runs.

    drain_s: how long a process may finish what it has begun.
    on_progress: told how many of how many parts are ready.
    Raises Failure where a process ends before the pool is ready, or it takes too long.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-") as socket_dir:  # 0700
        layout = lay_out(wanted, Path(socket_dir), pool)
        children = [Child(process, sink) for process in layout.processes]
        try:
            await until_ready(layout, children, on_progress)
            yield layout
        finally:
            await stop(children, drain_s + STOP_GRACE_S)


async def stop(children: Sequence[Child], deadline_s: float) -> None:
    """Router first, engines last: each finds those it needs alive while it drains."""
    for role in Role:
        await asyncio.gather(*(child.stop(deadline_s) for child in children if child.process.role is role))


async def until_ready(
    layout: Layout, children: Sequence[Child], on_progress: Callable[[int, int], None]
) -> None:
    """Wait for every part. Raises Failure where one ends before that, or it takes too long."""
    parts = _parts(layout)
    late = list(parts)
    try:
        async with asyncio.timeout(layout.start_s), aiohttp.ClientSession() as session:
            while late:
                _raise_where_one_ended(children)
                ready = await asyncio.gather(*[_answers(session, url) for url in parts])
                late = [url for url, is_ready in zip(parts, ready, strict=True) if not is_ready]
                on_progress(len(parts) - len(late), len(parts))
                await asyncio.sleep(POLL_S if late else 0)
    except TimeoutError:
        unready = ", ".join(f"{url} does not answer" for url in late)
        raise Failure(
            f"the pool is not ready after {layout.start_s:g} s: {unready}; what it waits for is in its log"
        ) from None


def _raise_where_one_ended(children: Sequence[Child]) -> None:
    for child in children:
        if child.exits:
            raise Failure(f"{child.process.name} ended before the pool was ready: {child.why_it_ended}")


def _parts(layout: Layout) -> list[str]:
    """What answers where a part is ready: engines, then sidecars, then the router."""
    return [*(f"{url}/health" for url in layout.engines), *layout.metrics, f"{layout.admin_url}/ready"]


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
