"""The router's end of a session, in memory: no event leaves state behind."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from math import inf
from random import Random
from typing import Any, cast

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule
from loop_time import freeze, skip, thaw
from penstock_core.domain.slo import Tier
from penstock_core.domain.verdict import Admitted, Reason, Rejected
from penstock_core.routing import outlier_detection
from penstock_core.routing.progress import longest_silence_s
from penstock_proto import replica_pb2 as wire
from penstock_routing.connections.backoff import Backoff
from penstock_routing.replicas import replica_link, wire_conversion
from penstock_routing.replicas.link_state import LinkState
from penstock_routing.replicas.replica_link import (
    CONNECT_S,
    DESCRIBE_INTERVAL_S,
    LONGEST_ANSWER_TOKENS,
    SWEEP_S,
    ReplicaLink,
)
from penstock_routing.replicas.session_writer import Attempt
from penstock_routing.replicas.upstream_request import End, Lost, UpstreamRequest
from penstock_routing.request.generation_request import GenerationRequest
from penstock_runtime.grpc.client import Channel
from penstock_runtime.grpc.status import RpcError, Status
from structlog.testing import capture_logs

READY = wire.ReplicaFrame(snapshot=wire.Snapshot(engine_ready=True))
REQUEST = GenerationRequest("id", wire.ENDPOINT_COMPLETIONS, b"{}", Tier("chat"), 0.0)


class Ended(Exception):
    """The far end has gone."""


class MemorySession:
    """One session, as its call shows it to the router."""

    def __init__(self) -> None:
        self.written: list[wire.RouterFrame] = []
        self.may_write = asyncio.Event()
        self.may_write.set()
        self.broken: Exception | None = None
        self.cancelled = False
        self._frames: asyncio.Queue[wire.ReplicaFrame | BaseException | None] = asyncio.Queue()

    async def write(self, frame: wire.RouterFrame) -> None:
        await self.may_write.wait()
        if self.broken is not None:
            raise self.broken
        self.written.append(frame)

    def cancel(self) -> None:
        self.cancelled = True
        self._frames.put_nowait(None)

    def bring(self, *frames: wire.ReplicaFrame) -> None:
        for frame in frames:
            self._frames.put_nowait(frame)

    def end(self, error: BaseException | None = None) -> None:
        self._frames.put_nowait(error)

    async def receive(
        self, kind: type[wire.ReplicaFrame], deliver: Callable[[wire.ReplicaFrame], None]
    ) -> None:
        while (frame := await self._frames.get()) is not None:
            if isinstance(frame, BaseException):
                raise frame
            deliver(frame)

    @property
    def submitted(self) -> list[int]:
        return [submit.id for frame in self.written for submit in frame.submits]

    @property
    def taken_back(self) -> list[int]:
        return [id for frame in self.written for id in frame.cancels]


class MemoryReplica:
    """A substitute for the channel to a replica. sessions: all that were opened, the last one still open."""

    def __init__(self) -> None:
        self.sessions: list[MemorySession] = []
        self.describes: list[float] = []  # when it was asked for its description
        self.answers = asyncio.Event()
        self.answers.set()
        self.description = wire.DescribeReply(replica="r0")
        self.refusal: Exception | None = None

    async def __aenter__(self) -> "MemoryReplica":
        return self

    async def __aexit__(self, *_: object) -> None:
        """Assert that no request or stream is open."""

    async def request(
        self, method: str, request: wire.DescribeRequest, kind: type[wire.DescribeReply]
    ) -> wire.DescribeReply:
        self.describes.append(asyncio.get_running_loop().time())
        await self.answers.wait()
        if self.refusal is not None:
            raise self.refusal
        return self.description

    def open(self, method: str) -> MemorySession:
        self.sessions.append(MemorySession())
        self.sessions[-1].bring(READY)
        return self.sessions[-1]


def link_to(
    replica: MemoryReplica, backoff: Backoff | None = None, changed: Callable[[], None] = lambda: None
) -> ReplicaLink:
    def connect(address: str) -> Channel:
        return cast(Channel, replica)

    return ReplicaLink("r0", "memory", connect, backoff or Backoff(Random(1), 0.0, 0.0), changed=changed)


@asynccontextmanager
async def linked(
    changed: Callable[[ReplicaLink], None] = lambda link: None,
) -> AsyncIterator[tuple[ReplicaLink, MemoryReplica]]:
    replica = MemoryReplica()
    link = link_to(replica, changed=lambda: changed(link))
    running = asyncio.create_task(link.run())
    await turns()
    assert link.state is LinkState.READY
    yield link, replica
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def ask(link: ReplicaLink, bound_bytes: int | None = 1000) -> UpstreamRequest:
    return link.submit(Attempt(REQUEST, 1, False), bound_bytes, lambda: None)


def event(id: int, **kind: Any) -> wire.ReplicaFrame:
    return wire.ReplicaFrame(events=[wire.Event(id=id, **kind)])


async def test_an_unsent_request_is_not_a_loss_and_not_sent_in_the_next_session() -> None:
    async with linked() as (link, replica):
        (old,) = replica.sessions
        old.may_write.clear()
        first = ask(link)
        await turns()
        unsent = ask(link)
        old.end()
        await turns()
        assert first.end == Lost("r0", "the session ended")
        assert unsent.end == Lost("r0", "the session ended", reached=False)
        _, new = replica.sessions
        last = ask(link)
        await turns()
        assert new.submitted == [last.id]


async def test_a_lost_session_leaves_no_load() -> None:
    async with linked() as (link, replica):
        ask(link)
        ask(link)
        assert (link.load.sent, link.load.sent_tokens) == (2, 2)
        replica.sessions[0].end()
        await turns()
        assert link.state is LinkState.READY
        assert (link.load.sent, link.load.sent_tokens) == (0, 0)


@pytest.mark.parametrize("kind", ["admitted", "best_effort"])
async def test_an_accepted_request_counts_in_the_replicas_snapshot(kind: str) -> None:
    verdicts: dict[str, Any] = {"admitted": wire.Admitted(), "best_effort": wire.BestEffort()}
    async with linked() as (link, replica):
        upstream = ask(link)
        replica.sessions[0].bring(event(upstream.id, **{kind: verdicts[kind]}))
        await turns()
        assert upstream.verdict is not None
        assert link.load.sent == 0


async def test_an_ended_request_is_removed() -> None:
    async with linked() as (link, replica):
        upstream = ask(link)
        assert not _is_done(link.idle())
        replica.sessions[0].bring(event(upstream.id, rejected=wire.Rejected()))
        await turns()
        assert link.load.sent == 0
        assert _is_done(link.idle())


async def test_the_backoff_is_reset_by_a_good_connection() -> None:
    class Counting(Backoff):
        resets = 0

        def reset(self) -> None:
            self.resets += 1

    replica, backoff = MemoryReplica(), Counting(Random(1), 0.0, 0.0)
    running = asyncio.create_task(link_to(replica, backoff).run())
    for sessions in (1, 2, 3):
        await turns()
        assert (len(replica.sessions), backoff.resets) == (sessions, sessions)
        replica.sessions[-1].end()
    running.cancel()
    await asyncio.wait({running})


async def test_a_session_that_cannot_be_written_to_ends() -> None:
    async with linked() as (link, replica):
        (session,) = replica.sessions
        session.broken = asyncio.InvalidStateError()
        upstream = ask(link)
        await turns()
        assert session.cancelled
        assert isinstance(upstream.end, Lost)
        assert len(replica.sessions) == 2


async def test_the_link_reconnects_after_every_kind_of_session_end() -> None:
    async with linked() as (link, replica):
        for error in (Ended("odd"), TimeoutError(), None):
            upstream = ask(link)
            replica.sessions[-1].end(error)
            await turns()
            assert isinstance(upstream.end, Lost)
            assert link.state is LinkState.READY


async def test_a_probe_whose_request_was_cancelled_is_followed_by_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outlier_detection, "FIRST_S", 0.0)
    async with linked() as (link, _):
        for _ in range(outlier_detection.CONSECUTIVE):
            link.ejection.failed()
        assert link.ejection.ejected
        probe = ask(link)
        assert not link.ejection.takes(float("inf"))
        other = ask(link)
        link.abandon(other)
        assert not link.ejection.takes(float("inf"))
        link.abandon(probe)
        assert link.ejection.takes(float("inf"))


async def test_a_connection_lost_with_unanswered_requests_is_one_failure() -> None:
    async with linked() as (link, replica):
        for _ in range(outlier_detection.CONSECUTIVE):
            assert not link.ejection.ejected
            ask(link)
            ask(link)
            await turns()
            replica.sessions[-1].end()
            await turns()
        assert link.ejection.ejected


async def test_a_connection_lost_without_unanswered_requests_is_no_failure() -> None:
    async with linked() as (link, replica):
        upstream = ask(link)
        await turns()
        replica.sessions[-1].bring(event(upstream.id, admitted=wire.Admitted()))
        await turns()
        for _ in range(2 * outlier_detection.CONSECUTIVE):
            replica.sessions[-1].end()
            await turns()
        assert not link.ejection.ejected


async def test_each_cause_of_a_sessions_end_is_logged_once() -> None:
    with capture_logs() as said:
        async with linked() as (link, replica):
            for error in (None, Ended("odd")):
                for _ in range(3):
                    replica.sessions[-1].end(error)
                    await turns()
            replica.sessions[-1].broken = RpcError(Status.UNAVAILABLE, "the connection broke")
            ask(link)
            await turns()
    events = [(line["event"], line.get("why", line.get("state"))) for line in said]
    assert events == [
        ("replica", "ready"),
        *[("replica not connected", "the replica ended the session"), ("replica", "ready")] * 3,
        *[("replica link failed", None), ("replica not connected", "Ended: odd"), ("replica", "ready")] * 3,
        ("replica not connected", "unavailable: the connection broke"),
        ("replica", "ready"),
    ]


async def test_a_cause_is_logged_once_while_it_lasts() -> None:
    replica = MemoryReplica()
    replica.refusal = RpcError(Status.UNAVAILABLE, "no connection: connection refused")
    link = link_to(replica)
    with capture_logs() as said:
        running = asyncio.create_task(link.run())
        await turns(60)
        running.cancel()
        await asyncio.wait({running})
    assert len(replica.describes) > 2
    assert [line["why"] for line in said] == ["unavailable: no connection: connection refused"]
    assert link.state is LinkState.CONNECTING


async def test_every_change_of_replicas_is_reported() -> None:
    received: list[LinkState] = []
    async with linked(lambda link: received.append(link.state)) as (link, replica):
        received.clear()
        replica.sessions[-1].bring(READY)
        replica.sessions[-1].bring(wire.ReplicaFrame(snapshot=wire.Snapshot(engine_ready=False)))
        replica.sessions[-1].bring(
            wire.ReplicaFrame(snapshot=wire.Snapshot(engine_ready=True, draining=True))
        )
        replica.sessions[-1].bring(wire.ReplicaFrame(snapshot=wire.Snapshot(work_s=-1)), READY)
        await turns()
        replica.sessions[-1].end()
        await turns()
        states = LinkState.ENGINE_DOWN, LinkState.DRAINING, LinkState.MALFORMED, LinkState.READY
        assert received == [*states, LinkState.LOST, LinkState.READY]
        assert link.malformed == 1


@pytest.fixture
async def still(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A clock that only tests advance."""
    freeze()
    monkeypatch.setattr(replica_link, "monotonic", lambda: asyncio.get_running_loop().time())
    yield
    thaw()


async def test_a_snapshots_age_counts_from_its_arrival(still: None) -> None:
    async with linked() as (link, replica):
        await skip(3)
        assert asyncio.get_running_loop().time() - link.load.snapshot_s == 3
        replica.sessions[0].bring(READY)
        await turns()
        assert asyncio.get_running_loop().time() == link.load.snapshot_s


async def test_a_replica_s_description_is_refreshed_periodically(still: None) -> None:
    async with linked() as (link, replica):
        replica.description = wire.DescribeReply(replica="r0", max_model_len=7)
        for _ in range(3):
            await skip(DESCRIBE_INTERVAL_S)
        began_s = replica.describes[0]
        assert [at_s - began_s for at_s in replica.describes] == [0, 15, 30, 45]
        assert link.description.max_model_len == 7


async def test_a_silent_replica_is_disconnected(still: None) -> None:
    async with linked() as (link, replica):
        upstream = ask(link)
        await turns()
        replica.answers.clear()
        await skip(DESCRIBE_INTERVAL_S)
        await skip(CONNECT_S)
        assert (len(replica.describes), link.state) == (3, LinkState.READY)
        with capture_logs() as said:
            await skip(CONNECT_S)
        assert isinstance(upstream.end, Lost)
        assert said[0]["why"] == "it is connected but does not respond"
        replica.answers.set()
        await turns()
        assert (link.state, len(replica.sessions)) == (LinkState.READY, 2)


async def test_a_replica_that_sends_any_message_is_not_disconnected(still: None) -> None:
    async with linked() as (link, replica):
        replica.answers.clear()
        for _ in range(3):
            await skip(DESCRIBE_INTERVAL_S)
            replica.sessions[0].bring(READY)
            await turns()
            await skip(CONNECT_S)
        assert (len(replica.describes), len(replica.sessions)) == (4, 1)
        assert link.state is LinkState.READY


MALFORMED = wire.DescribeReply(replica="r0", time_model_json="{")
BUSY = RpcError(Status.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize(
    ("answer", "refusal", "malformed"),
    [(MALFORMED, None, 2), (MALFORMED, BUSY, 0)],
    ids=["malformed", "busy"],
)
async def test_an_unusable_description_counts_as_an_answer(
    still: None, answer: wire.DescribeReply, refusal: Exception | None, malformed: int
) -> None:
    """A replica that misses every other answer does not count as silent, and is not queried more often."""
    async with linked() as (link, replica):
        reported = link.description
        replica.description, replica.refusal = answer, refusal
        for _ in range(2):
            replica.answers.clear()
            await skip(DESCRIBE_INTERVAL_S)
            await skip(CONNECT_S)
            replica.answers.set()
            await turns()
        began_s = replica.describes[0]
        assert [at_s - began_s for at_s in replica.describes] == [0, 15, 20, 35, 40]
        assert (link.malformed, len(replica.sessions)) == (malformed, 1)
        assert link.description is reported


async def test_a_request_without_messages_is_ended_and_cancelled(still: None) -> None:
    async with linked() as (link, replica):
        silent, talking, waiting = ask(link), ask(link), ask(link)
        await turns()
        (session,) = replica.sessions
        session.bring(*(event(one.id, admitted=wire.Admitted()) for one in (silent, talking)))
        await turns()
        silent.longest_silence_s = talking.longest_silence_s = 2 * SWEEP_S
        await skip(SWEEP_S)
        session.bring(event(talking.id, output=wire.Output(data=b"x", tokens=1)))
        await skip(SWEEP_S)
        assert silent.end is None
        await skip(SWEEP_S)
        assert silent.end == Lost("r0", "no message about the request for 15 s")
        assert talking.end is waiting.end is None
        assert link.stalled == 1
        await turns()
        assert session.taken_back == [silent.id]


@pytest.mark.parametrize(
    ("talks", "end"),
    [(False, Lost("r0", "it does not respond")), (True, Rejected(Reason.QUEUE_FULL))],
    ids=["a silent replica", "one that talks"],
)
async def test_a_verdict_is_awaited_up_to_its_timeout(still: None, talks: bool, end: End) -> None:
    async with linked() as (link, replica):
        upstream = link.submit(Attempt(REQUEST, 1, False), 1000, lambda: None, 5.0)
        await turns()
        await skip(4)
        if talks:
            replica.sessions[0].bring(READY)
            await turns()
        assert upstream.end is None
        await skip(1)
        assert upstream.end == end
        assert link.load.sent == 0
        await turns()
        assert replica.sessions[0].taken_back == [upstream.id]


async def test_missing_verdicts_eject_and_received_ones_stop_the_timeout(still: None) -> None:
    async with linked() as (link, replica):
        for id, end in ((1, {"admitted": wire.Admitted()}), (2, {"rejected": wire.Rejected()})):
            upstream = link.submit(Attempt(REQUEST, 1, False), 1000, lambda: None, 5.0)
            assert upstream.id == id
            replica.sessions[0].bring(event(id, **end))
            await turns()
            await skip(9)
            assert not isinstance(upstream.end, Lost)
        for _ in range(outlier_detection.CONSECUTIVE):
            assert not link.ejection.ejected
            link.submit(Attempt(REQUEST, 1, False), 1000, lambda: None, 5.0)
            await skip(5)
        assert link.ejection.ejected
        assert replica.sessions == replica.sessions[:1]


@pytest.mark.parametrize(
    ("bound_bytes", "max_model_len", "silent_tokens"),
    [(1000, 4096, 1), (None, 4096, 4096), (None, 0, LONGEST_ANSWER_TOKENS)],
    ids=["a stream", "a whole answer", "a whole answer of any length"],
)
async def test_the_silence_timeout_depends_on_predictions_and_unwritten_tokens(
    bound_bytes: int | None, max_model_len: int, silent_tokens: int
) -> None:
    replica = MemoryReplica()
    replica.description = wire.DescribeReply(replica="r0", max_model_len=max_model_len)
    link = link_to(replica)
    running = asyncio.create_task(link.run())
    await turns()
    upstream = ask(link, bound_bytes)
    assert upstream.longest_silence_s == inf
    admitted = wire.Admitted(ttft_predicted_s=5, tpot_predicted_s=4)
    replica.sessions[0].bring(event(upstream.id, admitted=admitted))
    await turns()
    assert upstream.longest_silence_s == longest_silence_s(Admitted(5, 4), silent_tokens)
    running.cancel()
    await asyncio.wait({running})


def _is_done(waiting: Coroutine[Any, Any, None]) -> bool:
    """Return whether no event is pending."""
    try:
        waiting.send(None)
    except StopIteration:
        return True
    waiting.close()
    return False


class LinkMachine(RuleBasedStateMachine):
    """Any interleaving of what clients, the replica and the connection do."""

    requests = Bundle("requests")

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.open: dict[int, UpstreamRequest] = {}
        self.ends: dict[int, object] = {}
        self.abandoned: set[int] = set()

    @initialize()
    def connect(self) -> None:
        self.replica = MemoryReplica()
        self.link = link_to(self.replica)
        self.running = self.loop.create_task(self.link.run())
        self.settle()

    def settle(self, count: int = 25) -> None:
        self.loop.run_until_complete(turns(count))
        self.loop.run_until_complete(self._books_are_right())
        for id, upstream in self.open.items():
            if upstream.end is not None:
                assert self.ends.setdefault(id, upstream.end) is upstream.end, "a request has one end"

    async def _books_are_right(self) -> None:
        """The link knows of just those requests that have neither ended nor been given up."""
        carried = [at for id, at in self.open.items() if at.end is None and id not in self.abandoned]
        assert self.link.load.sent == sum(upstream.verdict is None for upstream in carried)
        assert _is_done(self.link.idle()) == (not carried)

    @property
    def session(self) -> MemorySession:
        return self.replica.sessions[-1]

    @rule(target=requests)
    def submit(self) -> int:
        upstream = self.loop.run_until_complete(self._ask())
        assert upstream.id not in self.open
        self.open[upstream.id] = upstream
        return upstream.id

    async def _ask(self) -> UpstreamRequest:
        return ask(self.link)

    @rule(id=requests, tokens=st.integers(0, 3))
    def verdict_and_output(self, id: int, tokens: int) -> None:
        output = wire.Event(id=id, output=wire.Output(data=b"x" * 300, tokens=tokens))
        self.session.bring(wire.ReplicaFrame(events=[wire.Event(id=id, admitted=wire.Admitted()), output]))

    @rule(id=requests, kind=st.sampled_from(["best_effort", "rejected", "finished", "failed", "unknown"]))
    def event(self, id: int, kind: str) -> None:
        known: dict[str, dict[str, Any]] = {
            "best_effort": {"best_effort": wire.BestEffort()},
            "rejected": {"rejected": wire.Rejected()},
            "finished": {"finished": wire.Finished()},
            "failed": {"failed": wire.Failed()},
            "unknown": {},
        }
        self.session.bring(event(id, **known[kind]))

    @rule(id=st.integers(10_000, 10_010))
    def event_of_an_unknown_request(self, id: int) -> None:
        self.session.bring(event(id, finished=wire.Finished()))

    @rule(id=consumes(requests))
    def abandon(self, id: int) -> None:
        self.link.abandon(self.open[id])
        self.abandoned.add(id)

    @rule(id=requests)
    def miss_a_verdict(self, id: int) -> None:
        self.link.ejection.failed()

    @rule()
    def malformed_snapshot(self) -> None:
        self.session.bring(wire.ReplicaFrame(snapshot=wire.Snapshot(work_s=-1)))

    @rule()
    def sound_snapshot(self) -> None:
        self.session.bring(READY)

    @rule(error=st.sampled_from([None, Ended("odd"), asyncio.InvalidStateError()]))
    def lose(self, error: BaseException | None) -> None:
        self.session.end(error)

    @rule(may=st.booleans())
    def stall_writes(self, may: bool) -> None:
        (self.session.may_write.set if may else self.session.may_write.clear)()

    @rule()
    def time_passes(self) -> None:
        self.settle()

    @invariant()
    def the_router_lives(self) -> None:
        assert not hasattr(self, "running") or not self.running.done()

    def teardown(self) -> None:
        for session in self.replica.sessions:
            session.may_write.set()
        self.settle(60)
        sent = [set(session.submitted) for session in self.replica.sessions]
        assert sum(map(len, sent)) == len(set().union(*sent)), "a request is sent over one session"
        self.session.end()
        self.settle(60)
        for id, upstream in self.open.items():
            assert upstream.end is not None or id in self.abandoned
        assert self.link.load.sent == self.link.load.sent_tokens == 0
        self.running.cancel()
        self.loop.run_until_complete(asyncio.wait({self.running}))
        assert not asyncio.all_tasks(self.loop), "nothing runs on"
        self.loop.close()


TestLinkMachine = LinkMachine.TestCase
TestLinkMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


async def test_an_event_that_cannot_be_handled_ends_and_cancels_only_its_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(event: wire.Event) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(wire_conversion, "accepted", broken)
    async with linked() as (link, replica):
        one, other = ask(link), ask(link)
        await turns()
        with capture_logs() as logs:
            replica.sessions[0].bring(event(one.id, admitted=wire.Admitted()))
            await turns()
        assert (one.end, other.end) == (wire_conversion.INTERNAL, None)
        assert replica.sessions[0].taken_back == [one.id]
        assert [entry["event"] for entry in logs] == ["event not handled"]


async def test_an_answer_that_exceeds_its_bound_is_cancelled() -> None:
    async with linked() as (link, replica):
        one, other = ask(link, bound_bytes=3), ask(link)
        await turns()
        piece = event(one.id, output=wire.Output(data=b"two", tokens=1))
        replica.sessions[0].bring(piece)
        await turns()
        assert replica.sessions[0].taken_back == []
        replica.sessions[0].bring(piece)
        await turns()
        assert replica.sessions[0].taken_back == [one.id]
        assert other.end is None


async def test_a_malformed_description_is_counted_each_time_and_logged_once_until_another(
    still: None,
) -> None:
    async with linked() as (link, replica):
        with capture_logs() as logs:
            for page in ("[", "[", "{}", "["):
                replica.description = wire.DescribeReply(replica="r0", time_model_json=page)
                await skip(DESCRIBE_INTERVAL_S)
        assert link.malformed == 4
        said = [entry["why"] for entry in logs if entry["event"] == "malformed message"]
        assert len(said) == 3 and said[0] == said[2] != said[1]
