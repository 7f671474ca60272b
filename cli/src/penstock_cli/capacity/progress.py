"""Progress of a search: a bar with the remaining time on a terminal, else a line at intervals.

The number of trials that a search needs is unknown. It is estimated as the mean of the searches that have
ended, or `TRIALS_GUESSED` before the first has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from penstock_cli.capacity.run import SearchProgress

TRIALS_GUESSED = 30
"""Estimated trials of a search before any search has ended."""
LINE_EVERY_S = 15.0
"""Seconds between lines of progress without a terminal."""
REFRESHES_PER_SECOND = 2
"""Rate at which the bar is drawn."""


def share_done(progress: SearchProgress, searches: int) -> float:
    """Return the estimated share of all trials that are done."""
    if progress.searches == searches:
        return 1.0
    each = progress.trials / progress.searches if progress.searches > 1 else TRIALS_GUESSED
    left = max(each * searches - progress.trials, each * (searches - progress.searches) / 2)
    return progress.trials / (progress.trials + left)


@contextmanager
def show_progress(console: Console, searches: int, what: str) -> Iterator[SearchProgress]:
    """Show the progress of searches while the block runs. what: plural noun for the results."""
    show = _bar if console.is_terminal else _lines
    with show(console, searches, what) as progress:
        yield progress


@contextmanager
def _bar(console: Console, searches: int, what: str) -> Iterator[SearchProgress]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[trials]} simulations,"),
        TimeElapsedColumn(),
        TextColumn("so far, about"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    progress = SearchProgress()
    with Progress(*columns, console=console, refresh_per_second=REFRESHES_PER_SECOND) as bar:
        task = bar.add_task("searching", total=1.0, trials=0)

        def ended() -> None:
            title = f"{progress.searches} of {searches} {what}"
            bar.update(
                task, completed=share_done(progress, searches), description=title, trials=progress.trials
            )

        progress.ended = ended
        yield progress


@contextmanager
def _lines(console: Console, searches: int, what: str) -> Iterator[SearchProgress]:
    progress, began_s = SearchProgress(), monotonic()
    printed_s = began_s

    def ended() -> None:
        nonlocal printed_s
        now_s = monotonic()
        if now_s - printed_s < LINE_EVERY_S or not progress.trials:
            return
        printed_s, done = now_s, share_done(progress, searches)
        left_s = (now_s - began_s) * (1 - done) / done
        done_text = f"{progress.searches} of {searches} {what}, {progress.trials} simulations"
        console.print(f"{done_text}, about {left_s:.0f} s left")

    progress.ended = ended
    yield progress
