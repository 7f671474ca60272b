"""The engine in real time: reports, faults of a policy, memory that runs out, stops."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from penstock_core.domain.policy import Step
from penstock_core.domain.replica_view import Limits, ReplicaView
from penstock_core.domain.request import Job
from penstock_core.domain.verdict import Verdict
from penstock_core.timing.speculation import Speculation
from penstock_proto.report_socket import ReportSocket
from penstock_proto.telemetry_pb2 import StepReport
from penstock_simulator.engine.engine_state import EngineState
from penstock_simulator.engine.iteration import Iteration
from penstock_simulator.serving.step_reports import StepReportSender

from tests.simulator.conftest import Eager

RealTime = Callable[..., AbstractAsyncContextManager[Any]]
Make = Callable[..., Job]


async def complete(engine: Any, name: str, tokens: int, prompt_tokens: int = 10) -> int:
    xargs = {"penstock_id": name, "penstock_best_effort": False}
    reply = await engine.client.completions.create(
        model="tiny",
        prompt=[7] * prompt_tokens,
        max_tokens=tokens,
        extra_body={"ignore_eos": True, "vllm_xargs": xargs},
    )
    return int(reply.usage.completion_tokens)


async def test_if_memory_runs_out_requests_are_preempted_and_every_token_is_returned(
    real_time: RealTime,
) -> None:
    async with real_time(kv_tokens=160) as engine:
        counts = await asyncio.gather(*[complete(engine, f"r{i}", 60, prompt_tokens=30) for i in range(6)])
        assert counts == [60] * 6
        assert engine.loop.state.preemptions > 0
        assert engine.loop.state.free_blocks == 10


class Drafting(Eager):
    """Two drafts beside every decode."""

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        step, _ = super().step(view, memory)
        return replace(step, drafts={job.request.id: 2 for job in view.running if job.decoding}), None


class Faulty:
    """A policy that in turn raises, returns an impossible step, and returns an empty one."""

    def __init__(self) -> None:
        self.turn = 0

    def start(self) -> None:
        return None

    def admit(self, view: ReplicaView, new: Sequence[Job]) -> Sequence[Verdict]:
        raise NotImplementedError

    def step(self, view: ReplicaView, memory: None) -> tuple[Step, None]:
        self.turn += 1
        if self.turn % 3 == 0:
            raise ZeroDivisionError
        if self.turn % 3 == 1:
            return Step({"nobody": 1}), None
        return Step(), None


async def test_a_faulty_policy_loses_no_request_and_is_counted(real_time: RealTime) -> None:
    async with real_time(policy=Faulty()) as engine:
        assert await complete(engine, "a", 8) == 8
        assert engine.loop.metrics.policy_failures >= 8


def bind(path: Path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))
    receiver.setblocking(False)
    return receiver


async def receive(receiver: socket.socket) -> StepReport:
    async with asyncio.timeout(20):
        return StepReport.FromString(await asyncio.get_running_loop().sock_recv(receiver, 1 << 20))


async def reports_of_one(receiver: socket.socket) -> list[StepReport]:
    """From an idle engine to one that is idle again, after one request. Read as they come: few can wait."""
    reports = [await receive(receiver)]
    while reports[-1].sequence < 5 or reports[-1].request_ids:
        reports.append(await receive(receiver))
    return reports


async def test_each_iteration_is_reported_with_the_state_it_leaves(
    real_time: RealTime, tmp_path: Path
) -> None:
    with bind(tmp_path / "t.sock") as receiver:
        async with real_time(report_to=tmp_path / "t.sock") as engine:
            working = asyncio.create_task(complete(engine, "a", 20, prompt_tokens=30))
            reports = await reports_of_one(receiver)
            await working
    assert [report.sequence for report in reports] == list(range(1, len(reports) + 1))
    begun = next(report for report in reports if report.request_ids)
    assert (begun.running, begun.waiting, list(begun.request_ids)) == (1, 0, ["a"])
    assert (begun.duration_s, list(begun.computed_tokens), list(begun.best_effort)) == (0, [0], [False])
    assert begun.next_duration_s > 0
    assert begun.kv_blocks_total - begun.kv_blocks_free == 2
    measured = [report for report in reports if report.tokens]
    assert [report.tokens for report in measured] == [30] + [1] * 19
    assert measured[0].prefill_work == 128 * 15
    assert (measured[1].context_tokens, list(measured[1].generated_tokens)) == (31, [2])
    assert all(report.duration_s > 0 for report in measured)
    assert (measured[-1].next_duration_s, list(measured[-1].request_ids)) == (0, [])


async def test_reports_carry_the_measured_acceptance_rate(real_time: RealTime, tmp_path: Path) -> None:
    reported = Speculation(2, 0.9)
    with bind(tmp_path / "t.sock") as receiver:
        async with real_time(
            report_to=tmp_path / "t.sock", policy=Drafting(), speculation=reported, step_s=0.02
        ) as engine:
            working = asyncio.create_task(complete(engine, "a", 60))
            reports = await reports_of_one(receiver)
            await working
            assert engine.loop.metrics.policy_failures == 0
    first, last = reports[0].drafting, reports[-1].drafting
    assert (first.max_tokens, first.acceptance, dict(first.by_tier)) == (2, 0.9, {})
    assert last.acceptance != 0.9
    assert dict(last.by_tier) == {"direct": pytest.approx(last.acceptance, abs=0.05)}
    grew = [report.generated_tokens[0] for report in reports if report.running]
    assert max(after - before for before, after in pairwise(grew)) == 3, "a step may bring several tokens"


async def test_reports_have_the_end_of_thinking(real_time: RealTime, tmp_path: Path) -> None:
    xargs = {"penstock_id": "a", "simulated_output_tokens": 12, "simulated_thinking_tokens": 5}
    with bind(tmp_path / "t.sock") as receiver:
        async with real_time(report_to=tmp_path / "t.sock") as engine:
            asking = engine.client.completions.create(
                model="tiny", prompt="hi", max_tokens=50, extra_body={"vllm_xargs": xargs}
            )
            working = asyncio.create_task(asking)
            reports = await reports_of_one(receiver)
            await working
            assert engine.loop.state.finished_thinking_tokens == {}
    rows = [(r.generated_tokens[0], list(r.thinking_tokens)) for r in reports if r.request_ids]
    assert rows == [(n, [5] if n >= 5 else []) for n in range(12)]


async def test_a_restarted_sidecar_gets_the_state_of_an_idle_engine(
    real_time: RealTime, tmp_path: Path
) -> None:
    path = tmp_path / "t.sock"
    async with real_time(report_to=path) as engine:
        assert await complete(engine, "a", 2) == 2
        assert engine.loop.metrics.reports_lost > 0
        instances = set()
        for _ in range(2):
            with bind(path) as receiver:
                report = await receive(receiver)
                instances.add(report.engine_instance)
                assert (report.kv_blocks_total, report.duration_s, report.next_duration_s) == (1000, 0, 0)
            path.unlink()
    assert len(instances) == 1


def crowd(job: Make, count: int) -> EngineState:
    state = EngineState(1 << 20, Limits(8192, 256))
    for at in range(count):
        state.add(job(f"router-7f9c-session-{at:012d}", arrival_s=at), 50)
    return state


def test_a_thousand_requests_fit_a_report(job: Make, tmp_path: Path) -> None:
    with bind(tmp_path / "t.sock") as receiver:
        sender = ReportSocket(tmp_path / "t.sock", print)
        StepReportSender(sender).send(crowd(job, 1000), None, Iteration(), 0.0)
        report = StepReport.FromString(receiver.recv(1 << 20))
        sender.close()
    assert (len(report.request_ids), report.waiting, sender.lost) == (1000, 1000, 0)


def test_a_report_has_the_prefill_in_progress(job: Make, tmp_path: Path) -> None:
    state = crowd(job, 3)
    second = state.waiting[1].request.id
    started = state.start(Step({second: 7}))
    with bind(tmp_path / "t.sock") as receiver:
        sender = ReportSocket(tmp_path / "t.sock", print)
        StepReportSender(sender).send(state, None, started, 0.02)
        report = StepReport.FromString(receiver.recv(1 << 20))
        sender.close()
    assert [report.request_ids[row] for row in report.prefilling] == [second]
    assert list(report.chunk_tokens) == [7]


def test_a_report_over_the_datagram_limit_omits_the_last_waiting_requests(job: Make, tmp_path: Path) -> None:
    state = crowd(job, 60_000)
    first = state.waiting[0].request.id
    state.apply(Step({first: 10}), 0.0)
    with bind(tmp_path / "t.sock") as receiver:
        sender = ReportSocket(tmp_path / "t.sock", print)
        StepReportSender(sender).send(state, None, Iteration(), 0.0)
        report = StepReport.FromString(receiver.recv(1 << 24))
        sender.close()
    assert (report.running, report.waiting, report.request_ids[0]) == (1, 59_999, first)
    assert 1 < len(report.request_ids) < 60_000
    assert len(report.computed_tokens) == len(report.best_effort) == len(report.request_ids)


def test_a_slow_reader_loses_reports_without_delaying_the_engine(job: Make, tmp_path: Path) -> None:
    state = crowd(job, 10)
    with bind(tmp_path / "t.sock"):
        sender = ReportSocket(tmp_path / "t.sock", print)
        reports = StepReportSender(sender)
        for _ in range(5000):
            reports.send(state, None, Iteration(), 0.0)
        sender.close()
    assert 0 < reports.lost < 5000


async def test_a_drain_finishes_open_answers(real_time: RealTime) -> None:
    async with real_time(drain_s=20) as engine:
        answer = asyncio.create_task(complete(engine, "a", 100))
        await engine.until(lambda state: state.running_count == 1)
    assert await answer == 100
