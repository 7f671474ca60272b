"""Watching a search: on a terminal a bar with the time that is left, elsewhere a line now and then.

How many trials a search will need is not known beforehand. The bar counts on the mean of those that have
ended, and on a guess before the first has.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from penstock_cli.capacity.run import Watch

TRIALS_GUESSED = 30
LINE_EVERY_S = 15.0


def share_done(watch: Watch, searches: int) -> float:
    """Of all trials that there will be, as far as can be told."""
    if watch.searches == searches:
        return 1.0
    each = watch.trials / watch.searches if watch.searches > 1 else TRIALS_GUESSED
    left = max(each * searches - watch.trials, each * (searches - watch.searches) / 2)
    return watch.trials / (watch.trials + left)


@contextmanager
def watching(console: Console, searches: int, what: str) -> Iterator[Watch]:
    """What searches tell while the block runs. what: they look for, in the plural."""
    show = _bar if console.is_terminal else _lines
    with show(console, searches, what) as watch:
        yield watch


@contextmanager
def _bar(console: Console, searches: int, what: str) -> Iterator[Watch]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[trials]} simulations,"),
        TimeElapsedColumn(),
        TextColumn("so far, about"),
        TimeRemainingColumn(),
        TextColumn("left"),
    )
    watch = Watch()
    with Progress(*columns, console=console, refresh_per_second=2) as bar:
        task = bar.add_task("searching", total=1.0, trials=0)

        def ended() -> None:
            title = f"{watch.searches} of {searches} {what}"
            bar.update(task, completed=share_done(watch, searches), description=title, trials=watch.trials)

        watch.ended = ended
        yield watch


@contextmanager
def _lines(console: Console, searches: int, what: str) -> Iterator[Watch]:
    watch, began_s = Watch(), monotonic()
    told_s = began_s

    def ended() -> None:
        nonlocal told_s
        now_s = monotonic()
        if now_s - told_s < LINE_EVERY_S or not watch.trials:
            return
        told_s, done = now_s, share_done(watch, searches)
        left_s = (now_s - began_s) * (1 - done) / done
        told = f"{watch.searches} of {searches} {what}, {watch.trials} simulations"
        console.print(f"{told}, about {left_s:.0f} s left")

    watch.ended = ended
    yield watch
