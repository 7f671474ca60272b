"""Properties that hold for any order of events."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.request import Job, Request, new_job
from penstock_core.policies import build
from penstock_core.timing.time_model import Term, TimeModel
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_routing.replicas.upstream_request import UpstreamRequest
from penstock_runtime.engine.connection import EngineGone, Receive
from penstock_runtime.engine.http_client import EngineResponse
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient
from penstock_sidecar.frames.outbox import Outbox, Urgency
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.holding_mirror import HoldingMirror
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.release.gate import ReleaseGate
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.serving import Serving
from penstock_sidecar.requests.estimates import Estimates
from prometheus_client import CollectorRegistry

from examples import examples
from tests.sidecar.conftest import DONE, TIERS, TOKEN, AdmitsAll, submit

MODEL = TimeModel("test", (Term(0.0001, 0.01),))
KEYS = "abcd"

PUTS = st.lists(
    st.tuples(
        st.integers(1, 3), st.binary(max_size=200), st.integers(0, 3), st.sampled_from(Urgency), st.booleans()
    ),
    max_size=30,
)


async def _framed(puts: list[tuple[int, bytes, int, Urgency, bool]]) -> dict[int, UpstreamRequest]:
    """Return a router's upstream requests after these outputs, with frames taken at any point between."""
    bounds = replace(Bounds(), frame_bytes=256, step_s=0.0, not_urgent_s=0.0)
    outbox = Outbox(bounds, wire.Snapshot, lambda: 99, lambda id: None)
    exchanges = {id: UpstreamRequest(id) for id in (1, 2, 3)}

    def deliver(frame: wire.ReplicaFrame | None) -> None:
        for event in frame.events if frame else ():
            exchanges[event.id].put(event.output.data, event.output.tokens)

    for id, data, tokens, urgency, then_taken in puts:
        outbox.put(wire.Event(id=id, output=wire.Output(data=data, tokens=tokens)), len(data), urgency)
        if then_taken:
            deliver(await outbox.frame())
    outbox.close()
    while (frame := await outbox.frame()) is not None:
        deliver(frame)
    assert outbox.empty
    return exchanges


@given(PUTS)
def test_bytes_and_tokens_arrive_whole_and_in_order_in_any_framing(puts: Any) -> None:
    for id, exchange in asyncio.run(_framed(puts)).items():
        news = exchange.take()
        assert news.data == b"".join(data for to, data, *_ in puts if to == id)
        assert news.tokens == sum(tokens for to, _, tokens, *_ in puts if to == id)


@dataclass
class TrueEngine:
    """What an engine holds, and the reports it has sent."""

    running: dict[str, list[int]] = field(default_factory=dict)  # computed and generated tokens
    queued: list[str] = field(default_factory=lambda: list(KEYS))
    sent: list[StepReport] = field(default_factory=list)

    def step(self, does: str, key: str) -> None:
        if does == "begin" and key in self.queued:
            self.queued.remove(key)
            self.running[key] = [100, 1]
        elif does == "end":
            self.running.pop(key, None)
        else:
            for tokens in self.running.values():
                tokens[0] += 1
                tokens[1] += 1
        keys = [*self.running, *self.queued]
        rows = [self.running.get(key, [0, 0]) for key in keys]
        report = StepReport(
            sequence=len(self.sent) + 1,
            running=len(self.running),
            waiting=len(self.queued),
            request_ids=keys,
            computed_tokens=[row[0] for row in rows],
            generated_tokens=[row[1] for row in rows],
            best_effort=[False] * len(keys),
            kv_blocks_total=1000,
            kv_blocks_free=900,
            block_tokens=16,
        )
        self.sent.append(report)


STEPS = st.lists(
    st.tuples(st.sampled_from(("begin", "decode", "decode", "end")), st.sampled_from(KEYS)), min_size=1
)


def _job(key: str) -> Job:
    return new_job(Request(key, "chat", 0.0, 100, 500), 50, False)


@given(STEPS, st.data())
def test_the_last_report_counts_after_any_lost_repeated_or_late_ones(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    engine, mirror = TrueEngine(), ReplicaMirror(KvCache(1000, 1000, 16), Limits(), lambda _: 400)
    for key in KEYS:
        mirror.accept(_job(key), 0.0)
    for does, key in steps:
        engine.step(does, key)
    arrived = data.draw(st.lists(st.sampled_from(engine.sent), max_size=20))
    for number, report in enumerate([*arrived, engine.sent[-1]], 1):
        mirror.apply(report, number / 100)
        view = mirror.view(number / 100, MODEL)
        assert 0 <= view.kv.free_blocks <= view.kv.total_blocks
        assert all(job.computed_tokens >= 0 and job.pending_tokens >= 1 for job in view.running)
    view = mirror.view(1.0, MODEL)
    reported = {job.request.id: [job.computed_tokens, job.generated_tokens] for job in view.running}
    assert reported == engine.running
    assert {job.request.id for job in view.waiting} >= set(engine.queued)
    for key in KEYS:
        mirror.forget(key)
    mirror.apply(StepReport(), 1.1)
    view = mirror.view(1.1, MODEL)
    assert not view.running and not view.waiting


MOVES = st.lists(st.tuples(st.sampled_from(("come", "token", "end")), st.integers(0, 30)), max_size=40)


async def _through_the_gate(moves: list[tuple[str, int]]) -> None:
    bounds = replace(
        Bounds(), shortest_release_interval_s=0.0, release_share=1.0, longest_release_interval_s=0.001
    )
    estimates = Estimates(MODEL)
    mirror = HoldingMirror(KvCache(1000, 1000, 16), Limits(running=2), estimates.longer_output_tokens)
    metrics = Metrics(CollectorRegistry())
    gate = ReleaseGate(build("fcfs"), mirror, estimates, bounds=bounds, metrics=metrics)
    came: list[str] = []
    inside: list[str] = []

    async def awaits(key: str) -> None:
        await gate.wait_for_turn(key)
        assert key not in inside, "no request enters twice"
        inside.append(key)

    def ends(key: str) -> None:
        gone.add(key)
        waiting[key].cancel()
        mirror.forget(key)
        gate.ended(key, engine_full=False)

    waiting: dict[str, asyncio.Task[None]] = {}
    gone: set[str] = set()
    for does, number in moves:
        here = [key for key in came if key not in gone]
        if does == "come" or not here:
            key = f"r{len(came)}"
            came.append(key)
            mirror.accept(_job(key), 0.0)
            gate.hold((key,))
            waiting[key] = asyncio.create_task(awaits(key))
        elif does == "token" and (in_slots := [key for key in inside if key not in gone]):
            mirror.passed(in_slots[number % len(in_slots)], 1, 0.0)
            gate.passed(in_slots[number % len(in_slots)], 1, 0.0)
        elif does == "end":
            ends(here[number % len(here)])
        await asyncio.sleep(0)
    while left := [key for key in came if key not in gone]:  # whoever is inside ends: all get in
        first = left[0]
        async with asyncio.timeout(30):
            await waiting[first]
        ends(first)
    await asyncio.gather(*waiting.values(), return_exceptions=True)
    assert not any(gate.holds(key) for key in came)
    assert not mirror.in_engine.jobs and not mirror.held_view(0.0, MODEL).waiting
    assert metrics.faults.labels("gate")._value.get() == 0


@examples(50)
@given(MOVES)
def test_the_gate_releases_every_request_once_and_keeps_none(moves: list[tuple[str, int]]) -> None:
    asyncio.run(_through_the_gate(moves))


class ScriptedClient:
    """An engine's client with answers scripted by the test."""

    takes_stream_options = takes_token_ids = True

    def __init__(self) -> None:
        self.answers: dict[str, asyncio.Queue[bytes | None]] = {}
        self.closed: set[str] = set()

    @contextlib.asynccontextmanager
    async def answer(
        self, endpoint: "wire.Endpoint.ValueType", body: bytes, request_id: str
    ) -> AsyncIterator[EngineResponse]:
        pieces = self.answers[request_id] = asyncio.Queue()

        async def each(receive: Receive) -> None:
            while (piece := await pieces.get()) is not None:
                if not piece:
                    raise EngineGone(ConnectionResetError())
                receive(piece)

        try:
            yield EngineResponse(200, True, each)
        finally:
            self.closed.add(request_id)


class Interleaving:
    """One session over a replica, driven by moves; every answer's end is checked as it comes."""

    def __init__(self) -> None:
        self.client = ScriptedClient()
        self.policy = AdmitsAll()
        estimates = Estimates(MODEL)
        self.mirror = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), estimates.longer_output_tokens)
        self.metrics = Metrics(CollectorRegistry())
        self.replica = Replica(
            Serving(self.policy, TIERS, True, 8192),
            self.mirror,
            estimates,
            cast(EngineClient, self.client),
            metrics=self.metrics,
            bounds=Bounds(),
        )
        self.replica.state.engine_ready = True
        self.session = self.replica.open_session()
        self.frames: asyncio.Queue[wire.RouterFrame | None] = asyncio.Queue()
        self.seen: dict[int, list[str]] = {}
        self.submitted = 0

    async def receive(self, take: Callable[[wire.RouterFrame], None]) -> None:
        while (frame := await self.frames.get()) is not None:
            take(frame)

    async def write(self, frame: wire.ReplicaFrame) -> None:
        for event in frame.events:
            self.seen.setdefault(event.id, []).append(str(event.WhichOneof("kind")))

    async def move(self, does: str, number: int) -> None:
        answers = list(self.client.answers.values())
        answer = answers[number % len(answers)] if answers else None
        if does == "submit":
            self.submitted += 1
            body = b'{"prompt": [1], "stream": true}' if number % 5 else b'{"prompt": '
            self.frames.put_nowait(wire.RouterFrame(submits=[submit(self.submitted, body)]))
        elif does == "cancel":
            self.frames.put_nowait(wire.RouterFrame(cancels=[number % 8]))
        elif does == "drain":
            await self.replica.drain(0.0)
        elif does == "resume":
            self.replica.resume()
        elif does == "down":
            self.replica.engine_down(all_lost=bool(number % 2))
            self.replica.state.engine_ready = True
        elif does == "tick":
            self.replica.tick()
        elif answer is not None:
            answer.put_nowait({"token": TOKEN, "end": TOKEN + DONE, "cut": None, "lost": b""}[does])
        for _ in range(number % 4):
            await asyncio.sleep(0)

    def check(self) -> None:
        assert self.replica.unfinished == 0
        assert not self.session._requests
        assert asyncio.all_tasks() == {asyncio.current_task()}
        view = self.mirror.view(0.0, MODEL)
        assert not view.waiting and not view.running
        assert self.client.closed == set(self.client.answers)
        for kinds in self.seen.values():
            ends = [at for at, kind in enumerate(kinds) if kind in ("rejected", "finished", "failed")]
            assert ends in ([], [len(kinds) - 1]), "nothing comes after the end"
            assert kinds[0] in ("admitted", "rejected", "failed"), "a verdict comes first"
            assert kinds.count("admitted") <= 1
        faults = [family for family in self.metrics.faults.collect() if family.samples]
        assert not any(sample.value for family in faults for sample in family.samples)


DOES = (
    "submit",
    "submit",
    "token",
    "token",
    "end",
    "cut",
    "lost",
    "cancel",
    "drain",
    "resume",
    "down",
    "tick",
)


async def _interleaved(moves: list[tuple[str, int]], closes: bool) -> None:
    run = Interleaving()
    session = asyncio.create_task(run.session.run(run.receive, run.write))
    for does, number in moves:
        await run.move(does, number)
    if closes:
        await run.replica.close()
    else:
        run.frames.put_nowait(None)
    async with asyncio.timeout(30):
        await session
    run.replica.close_session(run.session)
    await run.replica.close()
    run.check()


@examples(100)
@given(st.lists(st.tuples(st.sampled_from(DOES), st.integers(0, 99)), max_size=40), st.booleans())
def test_every_interleaving_of_session_and_engine_leaves_no_state(
    moves: list[tuple[str, int]], closes: bool
) -> None:
    asyncio.run(_interleaved(moves, closes))
