"""Runs all searches concurrently: distributes their trials over CPU cores, those of earlier searches first.

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

from penstock_cli.capacity.sampled_question import Result, Trials
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
    requested: Sequence[Trial] = ()
    tallies: dict[int, TrialResult] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    found: list[Result] = field(default_factory=list)

    def advance(self, log: TrialLog, report: Callable[[Result], None]) -> None:
        """Advance the search until trials must be run or it has ended."""
        while len(self.tallies) == len(self.requested) and not self.found:
            answer = [self.tallies[index] for index in range(len(self.requested))] if self.requested else None
            try:
                self.requested = self.trials.send(answer)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                self.found.append(end.value)
                report(end.value)
                return
            known = {index: log.lookup(trial) for index, trial in enumerate(self.requested)}
            self.tallies = {index: tally for index, tally in known.items() if tally is not None}
            self.waiting = deque(index for index, tally in known.items() if tally is None)


def run_all(
    searches: Sequence[Trials[Result]],
    work: Work,
    jobs: int,
    log: TrialLog,
    progress: SearchProgress,
    *,
    report: Callable[[Result], None] = lambda _: None,
) -> list[Result]:
    """Return the result of each search, in order. An error in any search ends all.

    report: called with the result of each search when it ends.
    """
    in_progress = [_Search(trials) for trials in searches]
    running: dict[Future[TrialResult], tuple[_Search[Result], int]] = {}
    with workers(jobs) as executor:
        for search in in_progress:
            search.advance(log, report)
        while True:
            for search in in_progress:
                while search.waiting and len(running) < jobs:
                    index = search.waiting.popleft()
                    running[executor.submit(work, search.requested[index])] = search, index
            progress.searches = sum(bool(search.found) for search in in_progress)
            progress.ended()
            if not running:
                return [search.found[0] for search in in_progress]
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                search, index = running.pop(future)
                search.tallies[index] = future.result()
                log.record(search.requested[index], search.tallies[index])
                progress.trials += 1
                search.advance(log, report)


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
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_initialize_worker)
    try:
        yield executor
    except BaseException:  # the executor ends when its workers are gone
        for child in multiprocessing.active_children():
            child.kill()
        raise
    executor.shutdown()


def _initialize_worker() -> None:
    """Ignore Ctrl-C in workers; the main process handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_with_parent()
