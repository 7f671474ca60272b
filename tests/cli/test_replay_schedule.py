"""When a replay sends its requests, and how late it was, in virtual time."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, cast

import pytest
from penstock_cli.replay import generator
from penstock_cli.replay.client import ReplayClient
from penstock_cli.replay.generator import HEAD_START_S, Generator
from penstock_cli.replay.outcome import RequestEnding, RequestOutcome
from penstock_cli.replay.tally import ReplayTally
from penstock_cli.replay.tier_slos import TierSlos
from penstock_cli.traces import TraceRequest

START_S = 1000.0
ANSWER_S = 4.0
"""How long a turn of a session is answered."""
YIELD = asyncio.sleep


@dataclass
class Clock:
    """Virtual time. overslept_s: by which every pause is longer than asked."""

    now_s: float = START_S
    overslept_s: float = 0.0
    pauses_s: list[float] = field(default_factory=list)

    def monotonic(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        await YIELD(0)  # what is sent now begins now
        self.pauses_s.append(seconds)
        self.now_s += seconds + (self.overslept_s if seconds else 0.0)


@dataclass
class Client:
    """Answers once everything is sent, and the turns of sessions after `ANSWER_S`.

    sent: the number of each request, and when it was sent.
    """

    clock: Clock
    released: asyncio.Event = field(default_factory=asyncio.Event)
    tier_slos: TierSlos = field(default_factory=TierSlos)
    sent: list[tuple[int, float]] = field(default_factory=list)

    async def call(self, request: TraceRequest) -> RequestOutcome:
        number = request.number
        self.sent.append((number, self.clock.now_s - START_S - HEAD_START_S))
        if request.session:
            self.clock.now_s += ANSWER_S
        else:
            await self.released.wait()
        ending, turn = RequestEnding.ADMITTED, request.stage
        return RequestOutcome(str(number), "chat", request.arrival_s, 1, 1, ending, met=True, turn=turn)


class Replayed(NamedTuple):
    """The requests that were sent, and their outcomes."""

    sent: list[tuple[int, float]]
    ended: list[RequestOutcome]
    tally: ReplayTally


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(generator, "monotonic", clock.monotonic)
    monkeypatch.setattr(asyncio, "sleep", clock.sleep)
    return clock


async def sent(clock: Clock, requests: Iterable[TraceRequest], max_in_flight: int = 9) -> Replayed:
    client, ended = Client(clock), list[RequestOutcome]()
    sending = Generator(cast(ReplayClient, client), max_in_flight, ended.append)

    def read() -> Iterator[TraceRequest]:
        yield from requests
        client.released.set()

    tally = await sending.run(read())
    return Replayed(client.sent, ended, tally)


def requests(*arrivals_s: float) -> Iterator[TraceRequest]:
    return (TraceRequest(at_s, 1, 1, number=number) for number, at_s in enumerate(arrivals_s))


async def test_each_request_is_sent_at_its_time(clock: Clock) -> None:
    found = await sent(clock, requests(0.0, 0.5, 0.5, 2.0))
    assert [number for number, _ in found.sent] == [0, 1, 2, 3]
    assert [at_s for _, at_s in found.sent] == pytest.approx([0.0, 0.5, 0.5, 2.0])
    assert clock.pauses_s == pytest.approx([HEAD_START_S, 0.5, 0.0, 1.5])
    assert list(found.tally.late_s) == pytest.approx([0.0] * 4, abs=1e-9)
    assert found.tally.all.met == 4


async def test_a_late_request_is_sent_immediately_and_its_lateness_counted(clock: Clock) -> None:
    clock.overslept_s = 0.25
    found = await sent(clock, requests(0.0, 0.125, 5.0))
    assert clock.pauses_s == pytest.approx([HEAD_START_S, 0.0, 4.75])
    assert sorted(found.tally.late_s) == pytest.approx([0.125, 0.25, 0.25])


async def test_a_slowly_opened_trace_delays_its_first_request_and_counts_no_lateness(
    clock: Clock,
) -> None:
    def opened() -> Iterator[TraceRequest]:
        clock.now_s += 7.0
        yield from requests(0.0, 1.0)

    found = await sent(clock, opened())
    assert [at_s for _, at_s in found.sent] == pytest.approx([7.0, 8.0])
    assert list(found.tally.late_s) == pytest.approx([0.0, 0.0], abs=1e-9)


async def test_a_request_that_is_not_sent_is_not_late_and_has_no_replica(clock: Clock) -> None:
    found = await sent(clock, requests(0.0, 0.0, 0.0), max_in_flight=2)
    assert [number for number, _ in found.sent] == [0, 1]
    unsent = found.ended[0]
    assert (unsent.id, unsent.ending, unsent.met) == ("2", RequestEnding.FAILED, False)
    assert (unsent.hops, unsent.replica, unsent.output_tokens, unsent.cached_tokens) == (0, "", 0, None)
    assert list(found.tally.late_s) == pytest.approx([0.0] * 3, abs=1e-9)


def turns(*thoughts_s: float) -> list[TraceRequest]:
    """Return a session that starts immediately."""
    later = [
        TraceRequest(0.0, 1, 1, session="a", stage=stage, think_s=think_s, number=stage)
        for stage, think_s in enumerate(thoughts_s, start=1)
    ]
    return [TraceRequest(0.0, 1, 1, session="a"), *later]


async def test_a_turn_is_sent_after_the_last_answer_and_its_think_time(clock: Clock) -> None:
    found = await sent(clock, turns(1.0, 0.5))
    assert [number for number, _ in found.sent] == [0, 1, 2]
    assert [at_s for _, at_s in found.sent] == pytest.approx([0.0, 5.0, 9.5])
    assert list(found.tally.late_s) == pytest.approx([0.0] * 3, abs=1e-9)
    assert (found.tally.first_turns.requests, found.tally.later_turns.requests) == (1, 2)
    assert [one.arrival_s for one in found.ended] == pytest.approx([0.0, 5.0, 9.5])
    assert found.tally.last_arrival_s == pytest.approx(9.5)


async def test_a_turns_lateness_counts_from_the_end_of_its_think_time(clock: Clock) -> None:
    clock.overslept_s = 0.25
    found = await sent(clock, turns(1.0))
    assert sorted(found.tally.late_s) == pytest.approx([0.25, 0.25])


async def test_a_turn_over_the_bound_is_not_sent_and_the_session_continues(clock: Clock) -> None:
    found = await sent(clock, turns(1.0), max_in_flight=0)
    assert found.sent == []
    assert [(one.id, one.turn) for one in found.ended] == [("0", 0), ("1", 1)]
