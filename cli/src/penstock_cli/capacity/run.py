"""All searches at once: their trials go to the machine's cores, the earlier question's first.

A core that has nothing to do for one search works for the next. What a search sees is only its own tallies,
so its answer is the same on any number of cores.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Generic

from penstock_cli.capacity.memory import Memory
from penstock_cli.capacity.search import Found, Trials
from penstock_cli.capacity.trial import Tally, Trial
from penstock_cli.local.parent_death import stop_with_parent

Work = Callable[[Trial], Tally]


@dataclass(slots=True)
class Watch:
    """What somebody who waits wants to know. ended: called as each trial ends, and as each search does."""

    ended: Callable[[], None] = lambda: None
    trials: int = 0
    searches: int = 0


@dataclass(slots=True)
class _Search(Generic[Found]):
    """A search under way. waiting: its trials without a tally, by their place in what it yielded."""

    trials: Trials[Found]
    asked: Sequence[Trial] = ()
    tallies: dict[int, Tally] = field(default_factory=dict)
    waiting: deque[int] = field(default_factory=deque)
    found: list[Found] = field(default_factory=list)

    def go_on(self, memory: Memory, report: Callable[[Found], None]) -> None:
        """Let it yield until something has to be run, or it has found what it looked for."""
        while len(self.tallies) == len(self.asked) and not self.found:
            answer = [self.tallies[place] for place in range(len(self.asked))] if self.asked else None
            try:
                self.asked = self.trials.send(answer)  # type: ignore[arg-type]  # None starts it
            except StopIteration as end:
                self.found.append(end.value)
                report(end.value)
                return
            known = {place: memory.recall(trial) for place, trial in enumerate(self.asked)}
            self.tallies = {place: tally for place, tally in known.items() if tally is not None}
            self.waiting = deque(place for place, tally in known.items() if tally is None)


def run_all(
    searches: Sequence[Trials[Found]],
    work: Work,
    jobs: int,
    memory: Memory,
    watch: Watch,
    *,
    report: Callable[[Found], None] = lambda _: None,
) -> list[Found]:
    """Return what each search found, in order. An error in any of them ends all.

    report: called with each finding as soon as its search has ended.
    """
    under_way = [_Search(trials) for trials in searches]
    running: dict[Future[Tally], tuple[_Search[Found], int]] = {}
    with workers(jobs) as executor:
        for search in under_way:
            search.go_on(memory, report)
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
                memory.keep(search.asked[place], search.tallies[place])
                watch.trials += 1
                search.go_on(memory, report)


class Here(Executor):
    """An executor that is this process: what is submitted is done at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Do it."""
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


@contextmanager
def workers(jobs: int) -> Iterator[Executor]:
    """So many processes. They end with the block at once, in the middle of a trial if it must be."""
    if jobs == 1:
        yield Here()
        return
    executor = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield executor
    except BaseException:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in multiprocessing.active_children():
            child.kill()
        raise
    executor.shutdown()


def _begin() -> None:
    """Ctrl-C reaches all processes of a terminal; only the first one has something to say."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    stop_with_parent()
