"""Progress of a replay: a bar on a terminal, else a line at intervals."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from penstock_cli.replay.generator import ReplayProgress

REFRESH_S = 0.5
"""Seconds between updates of the bar."""
LINE_EVERY_S = 10.0
"""Seconds between lines of progress without a terminal."""
RATE_PERIODS = 10
"""Updates over which the shown rate is averaged."""


@asynccontextmanager
async def show_progress(
    console: Console, title: str, progress: ReplayProgress, requests: int
) -> AsyncIterator[None]:
    """Show the progress of a replay while the block runs. requests: their total number."""
    show = _bar if console.is_terminal else _lines
    watcher = asyncio.create_task(show(console, title, progress, requests))
    try:
        yield
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


async def _bar(console: Console, title: str, progress: ReplayProgress, requests: int) -> None:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("answered, {task.fields[rate]:.1f}/s sent, {task.fields[in_flight]} in flight"),
        TimeElapsedColumn(),
    )
    # Refreshed from here, because rich's own thread would take CPU time from sending.
    with Bar(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task(title, total=requests, rate=0.0, in_flight=0)
        try:
            async for rate in _rates(progress, REFRESH_S):
                bar.update(task, completed=progress.ended, rate=rate, in_flight=progress.in_flight)
                bar.refresh()
        finally:
            bar.update(task, completed=progress.ended, in_flight=progress.in_flight)
            bar.refresh()


async def _lines(console: Console, title: str, progress: ReplayProgress, requests: int) -> None:
    async for rate in _rates(progress, LINE_EVERY_S):
        done = f"{progress.ended} of {requests} answered"
        console.print(f"{title}: {done}, {rate:.1f}/s sent, {progress.in_flight} in flight")


async def _rates(progress: ReplayProgress, every_s: float) -> AsyncIterator[float]:
    """Yield the rate of sent requests over the last periods."""
    sent = deque([progress.sent], maxlen=RATE_PERIODS + 1)
    while True:
        await asyncio.sleep(every_s)
        sent.append(progress.sent)
        yield (sent[-1] - sent[0]) / (every_s * (len(sent) - 1))
