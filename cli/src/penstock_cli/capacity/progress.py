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
"""Trials of a search, as long as none has ended."""
LINE_EVERY_S = 15.0
"""Seconds between lines of progress where there is no terminal."""
REFRESHES_PER_SECOND = 2
"""How often the bar is drawn."""


def share_done(watch: SearchProgress, searches: int) -> float:
    """Return the estimated share of all trials that are done."""
    if watch.searches == searches:
        return 1.0
    each = watch.trials / watch.searches if watch.searches > 1 else TRIALS_GUESSED
    left = max(each * searches - watch.trials, each * (searches - watch.searches) / 2)
    return watch.trials / (watch.trials + left)


@contextmanager
def show_progress(console: Console, searches: int, what: str) -> Iterator[SearchProgress]:
    """Show the progress of searches while the block runs. what: what they search for, in the plural."""
    show = _bar if console.is_terminal else _lines
    with show(console, searches, what) as watch:
        yield watch


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
    watch = SearchProgress()
    with Progress(*columns, console=console, refresh_per_second=REFRESHES_PER_SECOND) as bar:
        task = bar.add_task("searching", total=1.0, trials=0)

        def ended() -> None:
            title = f"{watch.searches} of {searches} {what}"
            bar.update(task, completed=share_done(watch, searches), description=title, trials=watch.trials)

        watch.ended = ended
        yield watch


@contextmanager
def _lines(console: Console, searches: int, what: str) -> Iterator[SearchProgress]:
    watch, began_s = SearchProgress(), monotonic()
    printed_s = began_s

    def ended() -> None:
        nonlocal printed_s
        now_s = monotonic()
        if now_s - printed_s < LINE_EVERY_S or not watch.trials:
            return
        printed_s, done = now_s, share_done(watch, searches)
        left_s = (now_s - began_s) * (1 - done) / done
        done_text = f"{watch.searches} of {searches} {what}, {watch.trials} simulations"
        console.print(f"{done_text}, about {left_s:.0f} s left")

    watch.ended = ended
    yield watch
