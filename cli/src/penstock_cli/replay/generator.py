"""An open loop: requests are sent when the trace says, whether or not earlier ones have been answered.

A client that waits for answers sends less the slower its server gets, and so measures a load that nobody
has. Here every request is a task of its own. How late each was sent is kept, because a client that cannot
hold its schedule must not blame the server.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from time import monotonic

from penstock_cli.replay.client import Client
from penstock_cli.replay.outcome import Ending, Outcome
from penstock_cli.replay.tally import Tally
from penstock_cli.traces import TraceRequest

HEAD_START_S = 0.05
"""Between the start of the clock and the first arrival, so that the first request is not late."""


@dataclass(slots=True)
class Progress:
    """Where a replay is, for who watches it."""

    sent: int = 0
    ended: int = 0

    @property
    def in_flight(self) -> int:
        """Sent and not ended."""
        return self.sent - self.ended


@dataclass(slots=True)
class Generator:
    """One replay under way.

    max_in_flight: a bound on memory and sockets; requests beyond it are not sent, and count as failed.
    on_outcome: told of every request as it ends.
    """

    client: Client
    max_in_flight: int
    on_outcome: Callable[[Outcome], None]
    progress: Progress = field(default_factory=Progress)
    tally: Tally = field(init=False)

    def __post_init__(self) -> None:
        self.tally = Tally(self.client.promises.tiers_without_targets)

    async def run(self, requests: Iterable[TraceRequest]) -> Tally:
        """Send every request in its time, wait until all have ended, and give what was counted."""
        schedule = _with_first_read(requests)
        start_s = monotonic() + HEAD_START_S
        async with asyncio.TaskGroup() as tasks:
            for number, request in enumerate(schedule):
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

    def _end(self, outcome: Outcome, late_s: float) -> None:
        self.tally.add(outcome, late_s)
        self.on_outcome(outcome)


def _with_first_read(requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
    """The same requests, the first already read: opening a file must not make it late."""
    rest = iter(requests)
    return chain(list(islice(rest, 1)), rest)


def _unsent(request: TraceRequest, number: int, bound: int) -> Outcome:
    return Outcome(
        id=str(number),
        tier=request.tier,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        output_tokens=0,
        ending=Ending.FAILED,
        reason=f"not sent: {bound} in flight (--max-in-flight)",
    )
