"""Open-loop load generator: sends requests at their arrival times, regardless of earlier answers.

A closed loop would send less the slower the server is. Here every request is a task. The delay of each send
is recorded, so that a client that cannot keep its schedule is visible in the result.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import monotonic

from penstock_cli.replay.client import ReplayClient
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.tally import ReplayTally
from penstock_cli.traces import TraceRequest

HEAD_START_S = 0.05
"""Delay of the first arrival, so that the first request is not late."""


@dataclass(slots=True)
class ReplayProgress:
    """Counters of a replay in progress."""

    sent: int = 0
    ended: int = 0

    @property
    def in_flight(self) -> int:
        """Number of requests sent and not ended."""
        return self.sent - self.ended


@dataclass(slots=True)
class Generator:
    """One replay under way.

    max_in_flight: a bound on memory and sockets; requests beyond it are not sent, and count as failed.
    on_outcome: called for every request as it ends.
    """

    client: ReplayClient
    max_in_flight: int
    on_outcome: Callable[[RequestOutcome], None]
    progress: ReplayProgress = field(default_factory=ReplayProgress)
    tally: ReplayTally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = ReplayTally(self.client.tier_slos.tiers_without_targets)

    async def run(self, requests: Iterable[TraceRequest]) -> ReplayTally:
        """Send every request at its arrival time, wait until all have ended, and return the counts."""
        async with asyncio.TaskGroup() as tasks:
            for number, request in enumerate(requests):
                if number == 0:  # once it is read, so that opening the file does not delay it
                    start_s = monotonic() + HEAD_START_S
                due_s = start_s + request.arrival_s
                await asyncio.sleep(max(due_s - monotonic(), 0))
                if self.progress.in_flight < self.max_in_flight:
                    self.progress.sent += 1
                    tasks.create_task(self._send(request, number, due_s))
                else:
                    self._end(_unsent(request, number, self.max_in_flight), 0.0)
        return self.tally

    async def _send(self, request: TraceRequest, number: int, due_s: float) -> None:
        late_s = max(monotonic() - due_s, 0.0)
        outcome = await self.client.call(request, number)
        self.progress.ended += 1
        self._end(outcome, late_s)

    def _end(self, outcome: RequestOutcome, late_s: float) -> None:
        self.tally.add(outcome, late_s)
        self.on_outcome(outcome)


def _unsent(request: TraceRequest, number: int, bound: int) -> RequestOutcome:
    return RequestOutcome(
        id=str(number),
        tier=request.tier,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        output_tokens=0,
        ending=RequestEnding.FAILED,
        reason=f"not sent: {bound} in flight (--max-in-flight)",
    )
