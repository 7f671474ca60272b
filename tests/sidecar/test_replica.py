"""One replica in memory: its state callbacks, its drain, and its timed work."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from penstock_core.domain.replica_view import KvCache, Limits
from penstock_core.domain.verdict import Reason, Rejected
from penstock_proto import replica_pb2 as wire
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.clock import monotonic
from penstock_runtime.engine.connection import Receive
from penstock_runtime.engine.http_client import EngineResponse
from penstock_sidecar.bounds import Bounds
from penstock_sidecar.engine.client import EngineClient, Probe
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.replica.replica import Replica
from penstock_sidecar.replica.serving import Serving
from penstock_sidecar.replica.session import Session
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.replica_request import ReplicaRequest
from prometheus_client import CollectorRegistry

from tests.sidecar.conftest import DONE, MODEL, TIERS, TOKEN, AdmitsAll, submit


class Engine:
    """An engine that answers each request with a token and ends when the test permits."""

    takes_stream_options = takes_token_ids = True

    def __init__(self) -> None:
        self.asked = 0
        self.may_end = asyncio.Event()

    @asynccontextmanager
    async def answer(self, endpoint: int, body: bytes, request_id: str) -> AsyncIterator[EngineResponse]:
        self.asked += 1

        async def each(receive: Receive) -> None:
            receive(TOKEN)
            await self.may_end.wait()
            receive(DONE)

        yield EngineResponse(200, True, each)


class Rest(Estimates):
    """Records what is learned, and the idle times."""

    def __init__(self) -> None:
        super().__init__(MODEL)
        self.rested: list[float] = []

    def observe_idle(self, seconds: float) -> None:
        self.rested.append(seconds)
        super().observe_idle(seconds)


class Desk:
    """A replica with a session, and the receivers of its callbacks."""

    def __init__(self, **serving: Any) -> None:
        self.registry = CollectorRegistry()
        self.policy, self.engine, self.estimates = AdmitsAll(), Engine(), Rest()
        self.mirror = ReplicaMirror(KvCache(1000, 1000, 16), Limits(), self.estimates.longer_output_tokens)
        self.heard: list[bool] = []
        self.lost = 0
        self.now_s = monotonic()
        self.replica = Replica(
            Serving(self.policy, TIERS, True, 8192, **serving),
            self.mirror,
            self.estimates,
            cast(EngineClient, self.engine),
            metrics=Metrics(self.registry),
            bounds=Bounds(),
            engine_lost=self._lose,
            serves_changed=self.heard.append,
        )
        self.replica._now_s = lambda: self.now_s
        self.replica._ticked_s = self.now_s
        self.sessions = [self.replica.open_session()]

    def _lose(self) -> None:
        self.lost += 1

    async def submitted(self, **more: Any) -> ReplicaRequest:
        request = self.replica.submit(submit(1, **more), self.sessions[0])
        await turns()
        return request

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"penstock_replica_{name}", labels)


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(**more: Any) -> AsyncIterator[Desk]:
    """A replica whose engine is up."""
    desk = Desk(**more)
    desk.replica.engine_up(Probe(True, max_model_len=4096))
    desk.heard.clear()
    yield desk
    await desk.replica.close()
    assert desk.replica.unfinished == 0


async def snapshot_of(session: Session) -> wire.Snapshot:
    """Return the content of a session's next frame, which has to be due."""
    async with asyncio.timeout(20):
        frame = await session.outbox.frame()
    assert frame is not None
    return frame.snapshot


def is_due(session: Session) -> bool:
    return session.outbox._due.is_set()


async def test_readiness_changes_are_reported() -> None:
    desk = Desk()
    assert not desk.replica.state.serves
    desk.replica.engine_up(Probe(True))
    desk.replica.engine_down(all_lost=True)
    desk.replica.engine_up(Probe(True))
    await desk.replica.drain(0.0)
    desk.replica.resume()
    desk.replica.resume()
    assert desk.heard == [True, False, True, False, True]
    await desk.replica.close()


async def test_routers_receive_readiness_changes() -> None:
    async with serving() as desk:
        (session,) = desk.sessions
        assert (await snapshot_of(session)).engine_ready
        desk.replica.engine_down(all_lost=False)
        assert not (await snapshot_of(session)).engine_ready
        desk.replica.engine_up(Probe(True))
        await desk.replica.drain(0.0)
        assert (await snapshot_of(session)).draining
        desk.replica.resume()
        assert not (await snapshot_of(session)).draining


async def test_the_context_length_is_that_reported_by_the_engine() -> None:
    desk = Desk()
    desk.replica.engine_up(Probe(True, max_model_len=0))
    assert desk.replica.state.max_model_len == 8192
    desk.replica.engine_up(Probe(True, max_model_len=4096))
    desk.replica.engine_up(Probe(True, max_model_len=0))
    assert desk.replica.state.max_model_len == 4096
    await desk.replica.close()


async def test_an_ended_session_is_not_counted() -> None:
    async with serving() as desk:
        desk.sessions.append(desk.replica.open_session())
        assert desk.metric("sessions") == 2
        desk.replica.close_session(desk.sessions.pop())
        assert desk.metric("sessions") == 1


async def test_a_drain_waits_for_the_last_request_and_is_counted_once() -> None:
    async with serving() as desk:
        await desk.submitted()
        drains = [asyncio.create_task(desk.replica.drain(None)) for _ in range(2)]
        await turns()
        refused = await desk.submitted()
        assert refused.verdict == Rejected(Reason.DRAINING)
        assert not any(drain.done() for drain in drains)
        desk.engine.may_end.set()
        await turns()
        assert [drain.result() for drain in drains] == [0, 0]
        assert desk.metric("drains_total") == 1
        assert await desk.replica.drain(None) == 0  # no request to wait for


async def test_a_drain_that_is_aborted_or_times_out_returns_the_unfinished_requests() -> None:
    async with serving() as desk:
        await desk.submitted()
        assert await desk.replica.drain(0.0) == 1
        draining = asyncio.create_task(desk.replica.drain(None))
        await turns()
        desk.replica.resume()
        await turns()
        assert draining.result() == 1
        desk.engine.may_end.set()
        await turns()


async def test_a_drain_returns_requests_that_the_engine_has_not_started() -> None:
    async with serving() as desk:
        desk.policy.answers = lambda job: Rejected(Reason.KV_MEMORY)
        rejected = await desk.submitted()
        assert rejected.ended
        desk.policy.answers = AdmitsAll().answers
        waiting = desk.replica.submit(submit(2), desk.sessions[0])
        await asyncio.sleep(0)  # it is admitted, and has no output yet
        assert await desk.replica.drain(None) == 0
        assert waiting.ended
        assert desk.metric("returned_total") == 1


@pytest.mark.parametrize(("tier", "label"), [("chat", "chat"), ("x" * 99, "unknown")])
async def test_ends_are_counted_by_the_pools_tiers(tier: str, label: str) -> None:
    async with serving() as desk:
        await desk.submitted(tier=tier)
        desk.engine.may_end.set()
        await turns()
        end = "finished" if label == "chat" else "failed"
        assert desk.metric("ends_total", tier=label, end=end) == 1


async def test_learned_step_times_age_while_the_engine_is_idle() -> None:
    async with serving() as desk:
        for pause_s in (2.0, 3.0):
            desk.now_s += pause_s
            desk.replica.tick()
        assert desk.estimates.rested == [2.0, 3.0]
        await desk.submitted()
        desk.now_s += 4.0
        desk.replica.tick()
        assert desk.estimates.rested == [2.0, 3.0]
        desk.engine.may_end.set()
        await turns()
        desk.now_s += 5.0
        desk.replica.tick()
        assert desk.estimates.rested == [2.0, 3.0, 5.0]
        assert desk.metric("time_model_scale") == desk.estimates.model.scale


async def test_a_tick_sends_a_snapshot() -> None:
    async with serving() as desk:
        desk.replica.tick()
        assert desk.metric("telemetry_live") == 0
        desk.mirror.apply(StepReport(sequence=1), desk.now_s)
        desk.replica.tick()
        assert desk.metric("telemetry_live") == 1


async def test_a_tick_sends_changes_without_any_event() -> None:
    async with serving() as desk:
        (session,) = desk.sessions
        await snapshot_of(session)
        desk.replica.tick()
        assert not is_due(session)
        row: dict[str, Any] = {"request_ids": ["x"], "computed_tokens": [3], "generated_tokens": [1]}
        desk.mirror.apply(StepReport(sequence=1, running=1, best_effort=[False], **row), desk.now_s)
        desk.replica.tick()
        assert (await snapshot_of(session)).running == 1


async def test_a_request_of_one_router_is_in_the_snapshots_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as desk:
        desk.sessions += [desk.replica.open_session() for _ in range(2)]
        reported: list[float] = []
        for session in desk.sessions:
            monkeypatch.setattr(session.outbox, "send_within", reported.append)
        await desk.submitted()
        assert reported == [3 * Bounds().burst_snapshot_s] * 3
        desk.policy.answers = lambda job: Rejected(Reason.KV_MEMORY)
        reported.clear()
        await desk.submitted()
        assert reported == []
        desk.engine.may_end.set()
        await turns()


async def test_an_engine_that_loses_requests_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as desk:
        await desk.submitted()
        desk.replica.tick()
        assert desk.lost == 0
        desk.now_s = 10.0**9
        desk.replica.tick()
        assert desk.lost == 1
        assert desk.replica.unfinished == 0


async def test_a_replica_that_closes_ends_its_requests_and_sessions() -> None:
    async with serving() as desk:
        request = await desk.submitted()
        waiting = desk.replica.submit(submit(2), desk.sessions[0])
        await asyncio.sleep(0)
        await desk.replica.close()
        assert request.ended
        assert waiting.ended
        assert desk.metric("returned_total") == 1
        frames = [await desk.sessions[0].outbox.frame() for _ in range(2)]
        assert frames[-1] is None


async def test_if_no_snapshot_can_be_built_the_last_one_or_an_empty_one_is_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = Desk()
    with monkeypatch.context() as patch:
        patch.setattr(desk.mirror, "snapshot", lambda *_: 1 // 0)
        assert desk.replica.snapshot() == wire.Snapshot()
    reported = desk.replica.snapshot()
    assert reported.kv_tokens_total == 16_000
    monkeypatch.setattr(desk.mirror, "snapshot", lambda *_: 1 // 0)
    assert desk.replica.snapshot() == reported
    assert desk.metric("faults_total", where="snapshot") == 2
    await desk.replica.close()
