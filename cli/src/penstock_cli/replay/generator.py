"""Load generator: sends requests at their arrival times, regardless of the answers to others.

Such an open loop does not send fewer requests when the server is slow. Only the later turns of a closed-loop
session wait: for the answer to the previous turn, and for their think time. Every request or closed-loop
session is a task. The delay of each send is recorded, so that the result shows whether the client kept its
schedule.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """A replay in progress.

    max_in_flight: a bound on memory and sockets; requests beyond it are not sent, and count as failed.
    on_outcome: called for every request as it ends.
    """

    client: ReplayClient
    max_in_flight: int
    on_outcome: Callable[[RequestOutcome], None]
    progress: ReplayProgress = field(default_factory=ReplayProgress)
    tally: ReplayTally = field(init=False)

    def __post_init__(self) -> None:
        slos = self.client.tier_slos
        self.tally = ReplayTally(slos.tiers_without_targets, slos.time_model)

    async def run(self, requests: Iterable[TraceRequest]) -> ReplayTally:
        """Send every request at its time, wait until all have ended, and return the counts.

        A request with a think time follows the request before it.
        """
        start_s: float | None = None
        async with asyncio.TaskGroup() as tasks:
            for turns in _loops(requests):
                if (
                    start_s is None
                ):  # set after the first request is read, so that opening the file delays none
                    start_s = monotonic() + HEAD_START_S
                due_s = start_s + turns[0].arrival_s
                await asyncio.sleep(max(due_s - monotonic(), 0))
                tasks.create_task(self._send_all(turns, due_s))
        return self.tally

    async def _send_all(self, turns: Sequence[TraceRequest], due_s: float) -> None:
        """Send the turns in order, each after the previous one has ended and its think time has passed."""
        start_s = due_s - turns[0].arrival_s
        for turn in turns:
            if turn.think_s is not None:
                due_s = monotonic() + turn.think_s
                await asyncio.sleep(turn.think_s)
            await self._send(turn._replace(arrival_s=due_s - start_s), due_s)

    async def _send(self, turn: TraceRequest, due_s: float) -> None:
        if self.progress.in_flight >= self.max_in_flight:
            self._end(_unsent(turn, self.max_in_flight), 0.0)
            return
        self.progress.sent += 1
        late_s = max(monotonic() - due_s, 0.0)
        outcome = await self.client.call(turn)
        self.progress.ended += 1
        self._end(outcome, late_s)

    def _end(self, outcome: RequestOutcome, late_s: float) -> None:
        self.tally.add(outcome, late_s)
        self.on_outcome(outcome)


def _loops(requests: Iterable[TraceRequest]) -> Iterator[list[TraceRequest]]:
    """Yield closed loops: each request with the following requests that have a think time."""
    turns: list[TraceRequest] = []
    for request in requests:
        if turns and request.think_s is None:
            yield turns
            turns = []
        turns.append(request)
        if not request.session:
            yield turns
            turns = []
    if turns:
        yield turns


def _unsent(request: TraceRequest, bound: int) -> RequestOutcome:
    return RequestOutcome(
        id=str(request.number),
        tier=request.tier,
        arrival_s=request.arrival_s,
        prompt_tokens=request.prompt_tokens,
        output_tokens=0,
        ending=RequestEnding.FAILED,
        reason=f"not sent: {bound} requests are in flight (--max-inflight)",
        turn=request.stage,
    )
