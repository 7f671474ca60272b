"""Progress of a simulation: a bar with the remaining time on a terminal, else a line at intervals."""

from collections.abc import Iterable, Iterator
from math import inf
from time import monotonic
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TimeRemainingColumn as TimeLeftColumn

REFRESH_S = 0.2
"""Seconds between updates of the bar."""
LINE_EVERY_S = 10.0
"""Seconds between lines of progress without a terminal."""

Item = TypeVar("Item")


def show_progress(items: Iterable[Item], console: Console, title: str, total: int) -> Iterator[Item]:
    """Yield the same items and show progress. total: their number."""
    return _bar(items, console, title, total) if console.is_terminal else _lines(items, console, title, total)


def _bar(items: Iterable[Item], console: Console, title: str, total: int) -> Iterator[Item]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests,"),
        TimeElapsedColumn(),
        TextColumn("so far,"),
        TimeLeftColumn(),
        TextColumn("left"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as bar:
        task = bar.add_task(title, total=total)
        shown_s = -inf
        for item in items:
            yield item
            bar.advance(task)
            if monotonic() - shown_s >= REFRESH_S:
                bar.refresh()
                shown_s = monotonic()
        bar.refresh()


def _lines(items: Iterable[Item], console: Console, title: str, total: int) -> Iterator[Item]:
    began_s = printed_s = monotonic()
    for done, item in enumerate(items, start=1):
        yield item
        now_s = monotonic()
        if now_s - printed_s >= LINE_EVERY_S:
            printed_s = now_s
            left_s = (now_s - began_s) * (total - done) / done
            console.print(f"{title}: {done} of {total} requests, about {left_s:.0f} s left")
