"""Runs all searches concurrently. Their trials are distributed over CPU cores, earlier searches first.

A search depends only on the results of its own trials, so its result is the same on any number of cores.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock_cli.capacity.search import Result, Trials
from penstock_cli.capacity.trial import Trial, TrialResult
from penstock_cli.capacity.trial_log import TrialLog
from penstock_cli.local.parent_death import stop_with_parent

Work = Callable[[Trial], TrialResult]


@dataclass(slots=True)
class SearchProgress:
    """Progress of all searches. ended: called when a trial or a search ends."""

    ended: Callable[[], None] = lambda: None
    trials: int = 0
    searches: int = 0


@dataclass(slots=True)
class _Search(Generic[Result]):
    """A search in progress. waiting: indices of its trials that have no result yet."""

    trials: Trials[Result]
    asked: Sequence[Trial] = ()
    tallies: dict[int, TrialResult] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    found: list[Result] = field(default_factory=list)

    def advance(self, memory: TrialLog, report: Callable[[Result], None]) -> None:
        """Advance the search until trials must be run or it has ended."""
        while len(self.tallies) == len(self.asked) and not self.found:
            answer = [self.tallies[place] for place in range(len(self.asked))] if self.asked else None
            try:
                self.asked = self.trials.send(answer)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                self.found.append(end.value)
                report(end.value)
                return
            known = {place: memory.lookup(trial) for place, trial in enumerate(self.asked)}
            self.tallies = {place: tally for place, tally in known.items() if tally is not None}
            self.waiting = deque(place for place, tally in known.items() if tally is None)


def run_all(
    searches: Sequence[Trials[Result]],
    work: Work,
    jobs: int,
    memory: TrialLog,
    watch: SearchProgress,
    *,
    report: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Return what each search found, in order. An error in any of them ends all.

    report: called with each finding as soon as its search has ended.
    """
    under_way = [_Search(trials) for trials in searches]
    running: dict[Future[TrialResult], tuple[_Search[Result], int]] = {}
    with workers(jobs) as executor:
        for search in under_way:
            search.advance(memory, report)
        while True:
            for search in under_way:
                while search.waiting and len(running) < jobs:
                    place = search.waiting.popleft()
                    running[executor.submit(work, search.asked[place])] = search, place
            watch.searches = sum(bool(search.found) for search in under_way)
            watch.ended()
            if not running:
                return [search.found[0] for search in under_way]
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                search, place = running.pop(future)
                search.tallies[place] = future.result()
                memory.record(search.asked[place], search.tallies[place])
                watch.trials += 1
                search.advance(memory, report)


class InProcessExecutor(Executor):
    """An executor that runs each call immediately in this process."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the call, and return a completed future."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """Yield an executor with `jobs` processes. If the block raises, they are killed."""
    if jobs == 1:
        yield InProcessExecutor()
        return
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield executor
    except BaseException:  # without workers the executor ends too
        for child in multiprocessing.active_children():
            child.kill()
        raise
    executor.shutdown()


def _begin() -> None:
    """Ignore Ctrl-C in workers; the main process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_with_parent()
