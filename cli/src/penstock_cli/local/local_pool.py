"""Runs a pool on this machine: starts its processes, waits until they are ready, stops them in order."""

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
from penstock_pool import Pool

from penstock_cli.failure import Failure
from penstock_cli.local.child_process import ChildProcess, LogSink
from penstock_cli.local.layout import Layout, LocalPoolOptions, Role, plan_layout

POLL_S = 0.1
"""Interval of checks whether all components are ready."""

ANSWER_TIMEOUT_S = 2.0
"""Timeout of one check of one component."""

STOP_GRACE_S = 5.0
"""Time for a process to end after its drain timeout."""


@asynccontextmanager
async def local_pool(
    options: LocalPoolOptions,
    sink: LogSink,
    drain_s: float,
    on_progress: Callable[[int, int], None],
    pool: Pool | None = None,
) -> AsyncIterator[Layout]:
    """Run the pool while the block runs. It is ready for requests when the block begins.

    drain_s: seconds for requests in progress when it stops.
    on_progress: called with the number of ready components and of all components.
    Raises Failure if a process ends before the pool is ready, or at the timeout.
    """
    with tempfile.TemporaryDirectory(prefix="penstock-") as socket_dir:  # 0700
        layout = plan_layout(options, Path(socket_dir), pool)
        for path, text in layout.files.items():
            path.write_bytes(text)
        children = [ChildProcess(process, sink) for process in layout.processes]
        try:
            await until_ready(layout, children, on_progress)
            yield layout
        finally:
            await stop(children, drain_s + STOP_GRACE_S)


async def stop(children: Sequence[ChildProcess], deadline_s: float) -> None:
    """Stop the gateway first and engines last, so that each can drain."""
    for role in Role:
        await asyncio.gather(*(child.stop(deadline_s) for child in children if child.process.role is role))


async def until_ready(
    layout: Layout, children: Sequence[ChildProcess], on_progress: Callable[[int, int], None]
) -> None:
    """Wait until every component is ready. Raises Failure if one ends before that, or at the timeout."""
    components = _component_urls(layout)
    late = list(components)
    try:
        async with asyncio.timeout(layout.start_s), aiohttp.ClientSession() as session:
            while late:
                _check_exits(children)
                ready = await asyncio.gather(*[_answers(session, url) for url in components])
                late = [url for url, is_ready in zip(components, ready, strict=True) if not is_ready]
                on_progress(len(components) - len(late), len(components))
                if late:
                    await asyncio.sleep(POLL_S)
    except TimeoutError:
        unready = ", ".join(f"{url} does not answer" for url in late)
        raise Failure(f"the pool is not ready after {layout.start_s:g} s: {unready}; see its log") from None


def _check_exits(children: Sequence[ChildProcess]) -> None:
    for child in children:
        if child.exits:
            raise Failure(f"{child.process.name} ended before the pool was ready: {child.exit_reason}")


def _component_urls(layout: Layout) -> list[str]:
    """Return the URLs that answer when a component is ready: engines, sidecars, router or gateway."""
    return [*(f"{url}/health" for url in layout.engines), *layout.metrics, *layout.ready]


async def _answers(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)) as reply:
            return reply.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
