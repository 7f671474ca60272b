"""The queue of requests that wait for their verdict.

One call of the policy decides about all requests that were read within one turn of the event loop: a burst is
one plan, and a single request does not wait. A larger burst is decided in groups, in order. Several groups
are decided within one turn, because forwarding admitted requests would delay the verdicts of the others.
After a bounded time the event loop continues, so that open streams are served and verdicts are sent.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from penstock_core.domain.request_lifecycle import State
from penstock_runtime.clock import monotonic

from penstock_sidecar.bounds import Bounds
from penstock_sidecar.requests.replica_request import ReplicaRequest

Decide = Callable[[Sequence[ReplicaRequest]], None]


class AdmissionQueue:
    """The queue before the planner.

    decide: gives each request of a group its verdict.
    clock_s: returns seconds also within one turn of the event loop, whose own clock stops there.
    """

    def __init__(self, decide: Decide, bounds: Bounds, clock_s: Callable[[], float] = monotonic) -> None:
        self._decide, self._bounds, self._clock_s = decide, bounds, clock_s
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[ReplicaRequest] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, request: ReplicaRequest) -> None:
        """Queue a request, which gets its verdict in the next turn of the event loop."""
        if not self._waiting:
            self._loop.call_soon(self._decide_waiting)
        self._waiting.append(request)

    def _decide_waiting(self) -> None:
        until_s = self._clock_s() + self._bounds.decision_burst_s
        try:
            while self._waiting and self._clock_s() < until_s:
                self._decide_group()
        finally:
            if self._waiting:
                self._loop.call_soon(self._decide_waiting)

    def _decide_group(self) -> None:
        size = min(len(self._waiting), self._bounds.decided_together)
        group = [self._waiting.popleft() for _ in range(size)]
        candidates = [request for request in group if request.state is State.DECIDING]
        if candidates:
            self._decide(candidates)
