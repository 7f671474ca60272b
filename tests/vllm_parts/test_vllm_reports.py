"""Step reports as they are made: their content, which may be short, and when one has all requests again."""

from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest
from penstock_core.domain.engine_fields import from_fields
from penstock_core.domain.request import Job, advance
from penstock_core.domain.served_prompts import IDLE_IN_TURN, CachedPrompt
from penstock_core.timing.speculation import Speculation
from penstock_core.timing.time_model import BatchWork
from penstock_proto.report_socket import ReportSocket
from penstock_proto.telemetry_pb2 import StepReport
from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.pipeline import MeasuredStep
from penstock_vllm.report_thread import ReportThread
from penstock_vllm.reports import (
    MOST_QUEUED,
    WHOLE_EVERY_S,
    Boundary,
    BoundaryRecorder,
    CacheReport,
    ReportRows,
    Reports,
    UniformBoundary,
    report_of,
    rows_of,
)
from penstock_vllm.step_in_progress import StepInProgress
from penstock_vllm.view import KvMemory, StepBounds


def job(name: str, computed: int = 0, generated: int = 0, *, best_effort: bool = True) -> Job:
    made = from_fields({}, engine_id=name, prompt_tokens=10, max_output_tokens=100, now_s=0.0)
    made = advance(made, 0, generated, 0.0) if generated else made
    return made._replace(computed_tokens=computed, best_effort=best_effort)


ROWS = ReportRows([job("a", 12, 3, best_effort=False), job("b", 4)], {1: 4})
MEMORY = KvMemory(100, 41, 16)
NOW = Boundary(None, 1, 1, 0, MEMORY, 0.25, None, {}, changes=5, uniform_steps=7, rows=ROWS)


class Wire(ReportSocket):
    """A sink that copies each report and accepts it if the test permits."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), lambda *_: None)
        self.sent: list[StepReport] = []
        self.takes, self.closed = True, False

    def send(self, report: StepReport) -> bool:
        self.sent.append(StepReport.FromString(report.SerializeToString()))
        return self.takes

    def close(self) -> None:
        self.closed = True


def test_a_report_without_cache_changes_still_reports_a_cache() -> None:
    wire = Wire()
    reports = Reports(wire)
    reports.send(NOW._replace(cache=CacheReport(2, [], [])))
    reports.send(UniformBoundary(None, MEMORY, 0.125, 8))
    assert [(report.caches_prefixes, report.cache_resets) for report in wire.sent] == [(True, 2)] * 2


def test_a_report_has_the_step_that_ended_memory_and_every_request() -> None:
    wire = Wire()
    ended = MeasuredStep(BatchWork(9, 80, 7.0, 2), 0.5)
    Reports(wire, StepBounds(512, 16, 4096)).send(NOW._replace(ended=ended, preemptions=3))
    (report,) = wire.sent
    assert (report.sequence, len(report.engine_instance)) == (1, 32)
    assert (report.tokens, report.context_tokens, report.prefill_work, report.spec_steps) == (9, 80, 7.0, 2)
    assert (report.duration_s, report.next_duration_s) == (0.5, 0.25)
    assert (report.kv_blocks_total, report.kv_blocks_free, report.block_tokens) == (100, 41, 16)
    assert (report.running, report.waiting, report.preemptions) == (1, 1, 3)
    assert (report.most_batch_tokens, report.most_running) == (512, 16)
    assert list(report.request_ids) == ["a", "b"]
    assert (list(report.computed_tokens), list(report.generated_tokens)) == ([12, 4], [3, 0])
    assert (list(report.best_effort), list(report.prefilling), list(report.chunk_tokens)) == (
        [False, True],
        [1],
        [4],
    )
    assert not report.HasField("policy_faults") and not report.HasField("drafting")


def test_a_block_counts_for_every_group_of_layers_and_faults_and_drafts_are_reported() -> None:
    reported = Speculation(3, 0.5, {"chat": 0.75})
    report = report_of(
        NOW._replace(memory=KvMemory(100, 41, 16, 2), faults={"raised": 2}, speculation=reported)
    )
    assert (report.kv_blocks_total, report.kv_blocks_free) == (50, 20)
    assert report.policy_faults.raised == 2
    assert (report.drafting.max_tokens, report.drafting.acceptance) == (3, 0.5)
    assert dict(report.drafting.by_tier) == {"chat": 0.75}
    assert (report.duration_s, report.tokens) == (0.0, 0)


def test_an_incremental_report_names_its_complete_one() -> None:
    wire = Wire()
    reports = Reports(wire)
    reports.send(NOW)
    reports.send(NOW._replace(uniform_steps=9, rows=None))
    reports.send(UniformBoundary(None, KvMemory(100, 40, 16), 0.125, 10))
    first, second, third = wire.sent
    assert (second.since, second.further_tokens, list(second.request_ids)) == (first.sequence, 2, [])
    assert (third.since, third.further_tokens, third.kv_blocks_free) == (first.sequence, 3, 40)
    assert (third.next_duration_s, third.running, third.waiting) == (0.125, 1, 1)
    assert [report.sequence for report in wire.sent] == [1, 2, 3]
    assert not reports.broken


def test_without_a_complete_report_no_increment_is_sent_and_all_requests_are_due() -> None:
    wire = Wire()
    reports = Reports(wire)
    assert not reports.broken
    reports.send(NOW._replace(rows=None))
    assert (wire.sent, reports.broken) == ([], True)
    reports.send(NOW, skipped=3)
    assert wire.sent[0].sequence == 5
    reports.broken = False
    reports.send(NOW._replace(changes=6, rows=None))
    assert (len(wire.sent), reports.broken) == (1, True)
    reports.send(NOW)
    assert wire.sent[1].sequence == 7


def test_after_an_unreceived_report_all_requests_are_due() -> None:
    wire = Wire()
    reports = Reports(wire)
    wire.takes = False
    reports.send(NOW)
    assert reports.broken
    wire.takes, reports.broken = True, False
    reports.send(NOW._replace(uniform_steps=8, rows=None))
    assert (len(wire.sent), reports.broken) == (1, True)


def test_an_idle_engine_is_reported_again_without_increments() -> None:
    wire = Wire()
    reports = Reports(wire)
    reports.repeat()
    assert not wire.sent
    reports.send(NOW._replace(left_s=0.0, ended=MeasuredStep(BatchWork(3), 0.5)))
    reports.repeat()
    first, again = wire.sent
    assert (again.sequence, again.duration_s, first.duration_s) == (2, 0.0, 0.5)
    assert list(again.request_ids) == ["a", "b"]
    reports.send(NOW._replace(uniform_steps=8, rows=None))
    assert (len(wire.sent), reports.broken) == (2, True)
    reports.send(NOW)
    reports.repeat()
    assert len(wire.sent) == 3


def prompts_of(report: StepReport) -> dict[str, int]:
    return {prompt.request_id: prompt.cached_tokens for prompt in report.cached_prompts}


def test_an_idle_engine_reports_all_cached_prompts_again_in_turn() -> None:
    wire = Wire()
    reports = Reports(wire)
    idle = NOW._replace(left_s=0.0)
    cached = [CachedPrompt(f"p{number}", 40, 32) for number in range(IDLE_IN_TURN + 1)]
    reports.send(idle._replace(cache=CacheReport(0, cached, [])))
    reports.send(idle._replace(cache=CacheReport(0, [CachedPrompt("p1", 40, 0)], [])))
    reports.repeat()
    reports.repeat()
    first, again = map(prompts_of, wire.sent[2:])
    assert len(first) == IDLE_IN_TURN
    assert first | again == {f"p{number}": 32 for number in range(IDLE_IN_TURN + 1) if number != 1}


@pytest.mark.parametrize("cause", ["reset", "skipped", "lost"])
def test_an_idle_engine_does_not_repeat_prompts_that_may_be_evicted(cause: str) -> None:
    wire = Wire()
    reports = Reports(wire)
    idle = NOW._replace(left_s=0.0)
    reports.send(idle._replace(cache=CacheReport(0, [CachedPrompt("p", 40, 32)], [])))
    if cause == "lost":
        reports.record_loss()
    reports.send(idle._replace(cache=CacheReport(int(cause == "reset"), [], [])), int(cause == "skipped"))
    reports.repeat()
    assert prompts_of(wire.sent[-1]) == {}


def test_a_stopped_thread_closes_its_socket_and_never_blocks_the_process() -> None:
    wire, queue = Wire(), SimpleQueue[Boundary | UniformBoundary | None]()
    reports = Reports(wire)
    thread = ReportThread(reports, queue, BoundaryRecorder(reports, queue))
    assert thread._thread.daemon
    thread.stop()
    assert wire.closed


def recorder(changes: int = 5, now_s: float = 1000.0) -> tuple[BoundaryRecorder, Reports, Any]:
    queue = SimpleQueue[Boundary | UniformBoundary | None]()
    reports = Reports(Wire())
    reported = BoundaryRecorder(reports, queue)
    reported.record(NOW._replace(changes=changes), now_s)
    return reported, reports, queue


BOUNDARY = UniformBoundary(None, MEMORY, 0.25, 8)


@pytest.mark.parametrize(
    ("changes", "later_s", "broken", "goes_on"),
    [
        (5, WHOLE_EVERY_S - 0.001, False, True),
        (5, WHOLE_EVERY_S, False, False),
        (6, 0.0, False, False),
        (5, 0.0, True, False),
    ],
)
def test_a_report_of_all_requests_suffices_for_seconds_while_only_tokens_are_added(
    changes: int, later_s: float, broken: bool, goes_on: bool
) -> None:
    reported, reports, queue = recorder()
    reports.broken = broken
    assert reported.knows(changes, (), 1000.0 + later_s) is goes_on
    assert reported.repeat(changes, BOUNDARY, 1000.0 + later_s) is goes_on
    assert queue.qsize() == (2 if goes_on else 1)
    chunk: Any = SimpleNamespace(chunks={"a": 5})
    assert not reported.knows(5, (chunk,), 1000.0)


def test_rows_are_unknown_before_the_first_report() -> None:
    reports = Reports(Wire())
    assert not BoundaryRecorder(reports, SimpleQueue()).knows(0, (), 0.0)
    assert not BoundaryRecorder(reports, SimpleQueue()).repeat(0, BOUNDARY, 0.0)


def test_boundaries_over_the_queues_bound_are_counted() -> None:
    reported, _, queue = recorder()
    for _ in range(MOST_QUEUED - 1):
        assert reported.repeat(5, BOUNDARY, 1000.0)
    assert not reported.repeat(5, BOUNDARY, 1000.0)
    assert (queue.qsize(), reported.skipped) == (MOST_QUEUED, 0)
    reported.record(NOW, 1000.0)
    assert (queue.qsize(), reported.skipped) == (MOST_QUEUED, 1)
    assert not reported.knows(5, (), 1000.0)


def test_reporting_all_requests_recovers_from_a_loss_and_reporting_fewer_does_not() -> None:
    reported, reports, _ = recorder()
    reports.broken = True
    reported.record(NOW._replace(rows=None), 1000.0)
    assert reports.broken
    reported.record(NOW, 1000.0)
    assert not reports.broken


def test_rows_are_running_and_then_waiting_requests_with_their_prefilled_tokens() -> None:
    ledger = EngineLedger()
    waiting: Any = SimpleNamespace(
        request_id="w", num_prompt_tokens=5, max_tokens=9, resumable=False, sampling_params=None
    )
    ledger.add(waiting, 1.0, blocked=False)
    running = [HeldRequest(SimpleNamespace(request_id=f"engine-{name}"), job(name)) for name in "ab"]

    def step(**chunks: int) -> StepInProgress:
        output: Any = None
        named = {name.replace("_", "-"): tokens for name, tokens in chunks.items()}
        return StepInProgress(output, 0.0, BatchWork(1), 0.0, named)

    rows = rows_of(running, ledger, [step(engine_b=5), step(engine_b=7, engine_gone=3)])
    assert [one.request.id for one in rows.jobs] == ["a", "b", "w"]
    assert rows.chunks == {1: 12}
    assert rows_of(running, ledger, [step()]).chunks == {}
