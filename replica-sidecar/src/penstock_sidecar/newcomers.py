"""Requests that wait for their verdict, which they get together.

What is read before the event loop turns is decided by one call of the policy: a burst is one plan, and a lone
request waits for nobody. A burst larger than the planner takes at once is decided in several turns, in order.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock_core.request_lifecycle import State

from penstock_sidecar.carried import Carried

Decide = Callable[[Sequence[Carried]], None]


class Newcomers:
    """The queue before the planner. decide: gives each of the newcomers it gets a verdict."""

    def __init__(self, decide: Decide, together: int, most: int) -> None:
        self._decide, self._together, self._most = decide, together, most
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Carried] = deque()

    @property
    def full(self) -> bool:
        """Whether no more can wait: the replica could not carry them anyway."""
        return len(self._waiting) >= self._most

    def add(self, carried: Carried) -> None:
        """It gets its verdict when the loop turns."""
        if not self._waiting:
            self._loop.call_soon(self._turn)
        self._waiting.append(carried)

    def _turn(self) -> None:
        new = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._together))]
        if self._waiting:
            self._loop.call_soon(self._turn)
        still_wanted = [carried for carried in new if carried.state is State.DECIDING]
        if still_wanted:
            self._decide(still_wanted)
