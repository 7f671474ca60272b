"""Requests that wait for their verdict, which they get together.

What is read before the event loop turns is decided by one call of the policy: a burst is one plan, and a lone
request waits for nobody. A burst larger than the planner takes at once is decided in groups, in order. Groups
follow one another while their turn lasts, because carrying those who were accepted would keep the others from
their verdicts; then what streams gets its turn, and verdicts go out.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from penstock_core.domain.request_lifecycle import State

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.requests.carried import Carried

Decide = Callable[[Sequence[Carried]], None]


class Newcomers:
    """The queue before the planner. decide: gives each of the newcomers it gets a verdict.

    clock_s: reads seconds while the event loop's own clock stands still, within a turn.
    """

    def __init__(self, decide: Decide, bounds: Bounds, clock_s: Callable[[], float] = perf_counter) -> None:
        self._decide, self._bounds, self._clock_s = decide, bounds, clock_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Carried] = deque()

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)

    def add(self, carried: Carried) -> None:
        """It gets its verdict when the loop turns."""
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.append(carried)

    def _turn(self) -> None:
        until_s = self._clock_s() + self._bounds.deciding_s
        try:
            self._group()
            while self._waiting and self._clock_s() < until_s:
                self._group()
        finally:
            if self._waiting:
                self._loop.call_soon(self._turn)

    def _group(self) -> None:
        together = min(len(self._waiting), self._bounds.admitted_together)
        new = [self._waiting.popleft() for _ in range(together)]
        still_wanted = [carried for carried in new if carried.state is State.DECIDING]
        if still_wanted:
            self._decide(still_wanted)
