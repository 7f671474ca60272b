"""The engine's end of the telemetry socket: lossy, never blocking, and reconnecting."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue

import pytest
from penstock_core.domain.engine_fields import from_fields
from penstock_core.timing.time_model import BatchWork
from penstock_proto.report_socket import LONGEST_BYTES, SEND_BUFFER_BYTES, WARN_AFTER_S, ReportSocket
from penstock_proto.telemetry_pb2 import StepReport
from penstock_vllm.pipeline import MeasuredStep
from penstock_vllm.report_thread import ReportThread
from penstock_vllm.reports import (
    MOST_QUEUED,
    WHOLE_EVERY_S,
    Boundary,
    BoundaryRecorder,
    ReportRows,
    Reports,
    UniformBoundary,
)
from penstock_vllm.view import KvMemory, StepBounds

pytestmark = pytest.mark.timeout(60)  # what never blocks may still go round for ever

WARN = logging.getLogger("vllm.penstock").warning
JOB = from_fields({}, engine_id="r1", prompt_tokens=10, max_output_tokens=100, now_s=0.0)
IDLE = Boundary(None, 0, 0, 0, KvMemory(100, 100, 16), 0.0, None, {}, 0, 0, ReportRows([], {}))
MOVING = IDLE._replace(running=1, left_s=0.03, rows=ReportRows([JOB], {}))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.sock"


@pytest.fixture
def reader(path: Path) -> Iterator[socket.socket]:
    with closing(bound(path)) as receiver:
        yield receiver


class Wire(ReportSocket):
    """Takes whatever is sent. numbers: of those reports."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), WARN)
        self.numbers: list[int] = []

    def send(self, report: StepReport) -> bool:
        self.numbers.append(report.sequence)
        return True


def bound(path: Path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))
    receiver.settimeout(10)
    return receiver


def received_by(receiver: socket.socket) -> StepReport:
    return StepReport.FromString(receiver.recv(1 << 20))


def test_reports_are_lost_until_there_is_a_reader(path: Path) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(IDLE)
    assert reports.lost == 1
    with closing(bound(path)) as reader:
        reports.send(IDLE)
        assert received_by(reader).sequence == 2
    path.unlink()
    reports.send(IDLE)
    with closing(bound(path)) as reader:
        reports.send(IDLE._replace(ended=MeasuredStep(BatchWork(7), 0.5)))
        report = received_by(reader)
        assert (report.sequence, report.tokens, report.duration_s) == (4, 7, 0.5)
    reports.close()


def test_a_slow_reader_loses_reports_without_delaying_the_engine(path: Path, reader: socket.socket) -> None:
    ours = ReportSocket(path, WARN)
    taken = [ours.send(StepReport(kv_blocks_total=1)) for _ in range(5000)]
    assert set(taken) == {True, False}
    assert ours.lost == taken.count(False)
    assert received_by(reader).kv_blocks_total == 1
    ours.close()


def test_a_report_too_long_for_a_datagram_leaves_out_the_last_waiting_requests(
    path: Path, reader: socket.socket
) -> None:
    names = [f"request-{number:090}" for number in range(20_000)]
    zeros, ours = [0] * len(names), ReportSocket(path, WARN)
    ours.send(
        StepReport(
            running=10,
            request_ids=names,
            computed_tokens=zeros,
            generated_tokens=zeros,
            best_effort=[False] * len(names),
            waiting=len(names) - 10,
        )
    )
    report = received_by(reader)
    assert 10 <= len(report.request_ids) < len(names)
    assert len(report.computed_tokens) == len(report.best_effort) == len(report.request_ids)
    assert report.waiting == len(names) - 10
    assert ours.lost == 0
    ours.close()


COLUMNS = ("request_ids", "computed_tokens", "generated_tokens", "best_effort", "thinking_tokens")


def queue_of(running: int, waiting: int) -> StepReport:
    """A report of requests that differ in every column."""
    numbers = range(running + waiting)
    return StepReport(
        running=running,
        waiting=waiting,
        request_ids=[f"request-{number}" for number in numbers],
        computed_tokens=numbers,
        generated_tokens=[10 * number for number in numbers],
        best_effort=[number % 2 == 0 for number in numbers],
        thinking_tokens=[100 * number for number in numbers],
    )


@pytest.mark.parametrize(("too_long_by", "rows"), [(0, 26), (1, 18)])
def test_half_of_the_waiting_requests_are_left_out_of_a_report_over_the_limit(
    path: Path, reader: socket.socket, monkeypatch: pytest.MonkeyPatch, too_long_by: int, rows: int
) -> None:
    whole, ours = queue_of(10, 16), ReportSocket(path, WARN)
    monkeypatch.setattr("penstock_proto.report_socket.LONGEST_BYTES", whole.ByteSize() - too_long_by)
    assert ours.send(queue_of(10, 16))
    report = received_by(reader)
    for column in COLUMNS:
        assert list(getattr(report, column)) == list(getattr(whole, column))[:rows]
    assert report.waiting == 16
    ours.close()


def test_a_report_of_running_requests_that_is_too_long_is_dropped_whole(
    path: Path, reader: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ReportSocket(path, WARN)
    monkeypatch.setattr("penstock_proto.report_socket.LONGEST_BYTES", 200)
    assert not ours.send(queue_of(100, 100))
    assert ours.lost == 1
    assert ours.send(queue_of(1, 0))
    assert received_by(reader).running == 1
    ours.close()


def test_a_report_may_be_as_long_as_the_kernel_allows(path: Path, reader: socket.socket) -> None:
    granted = 2 * min(SEND_BUFFER_BYTES, int(Path("/proc/sys/net/core/wmem_max").read_text()))
    name, ours = "x" * min(granted * 3 // 4, LONGEST_BYTES * 9 // 10), ReportSocket(path, WARN)
    assert ours.send(StepReport(running=1, request_ids=[name]))
    assert received_by(reader).request_ids == [name]
    ours.close()


def test_an_idle_engine_reports_repeatedly_and_a_working_one_does_not(
    path: Path, reader: socket.socket
) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(IDLE)
    reports.repeat()
    assert [received_by(reader).sequence for _ in range(2)] == [1, 2]
    reports.send(IDLE._replace(left_s=0.1))
    reports.repeat()
    reports.send(IDLE)
    assert [received_by(reader).sequence for _ in range(2)] == [3, 4]
    reports.close()


def test_the_thread_sends_all_queued_reports_before_it_ends() -> None:
    wire = Wire()
    reports, queue = Reports(wire), SimpleQueue[Boundary | UniformBoundary | None]()
    teller = BoundaryRecorder(reports, queue)
    thread = ReportThread(reports, queue, teller)
    assert "penstock-reports" in {one.name for one in threading.enumerate()}
    for uniform_steps in range(20):
        teller.record(MOVING._replace(uniform_steps=uniform_steps), 0.0)
    thread.stop()
    assert "penstock-reports" not in {one.name for one in threading.enumerate()}
    assert wire.numbers == list(range(1, 21))


def test_reports_lost_by_a_full_queue_leave_a_gap_in_the_numbers() -> None:
    wire = Wire()
    reports, queue = Reports(wire), SimpleQueue[Boundary | UniformBoundary | None]()
    teller = BoundaryRecorder(reports, queue)
    for uniform_steps in range(MOST_QUEUED + 10):
        teller.record(MOVING._replace(uniform_steps=uniform_steps), 0.0)
    assert teller.skipped == 10
    assert not teller.knows(MOVING.changes, (), 0.0), "the next one has all requests again"
    ReportThread(reports, queue, teller).stop()
    assert wire.numbers == list(range(11, MOST_QUEUED + 11))


def test_a_report_that_cannot_be_built_is_a_gap_and_the_next_has_all_requests(
    path: Path, reader: socket.socket, caplog: pytest.LogCaptureFixture
) -> None:
    reports, queue = Reports(ReportSocket(path, WARN)), SimpleQueue[Boundary | UniformBoundary | None]()
    teller = BoundaryRecorder(reports, queue)
    unsendable = ReportRows([JOB._replace(computed_tokens=-1)], {})
    for uniform_steps, rows in enumerate([MOVING.rows, unsendable, unsendable, MOVING.rows]):
        teller.record(MOVING._replace(uniform_steps=uniform_steps, rows=rows), 0.0)
    with caplog.at_level("ERROR", "vllm.penstock"):
        ReportThread(reports, queue, teller).stop()
    assert [
        (report.sequence, len(report.request_ids)) for report in (received_by(reader), received_by(reader))
    ] == [
        (1, 1),
        (4, 1),
    ]
    assert [record.message for record in caplog.records] == [
        "penstock: a step report could not be sent: ValueError"
    ]


def test_after_a_failed_report_all_requests_are_reported_again(path: Path, reader: socket.socket) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(MOVING)
    reports.record_loss()
    assert reports.broken
    reports.send(MOVING._replace(uniform_steps=1, rows=None))  # its base may be wrong
    reports.send(MOVING._replace(uniform_steps=2))
    assert [received_by(reader).sequence for _ in range(2)] == [1, 4]
    reports.close()


def test_a_heartbeat_that_cannot_be_sent_does_not_end_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock_vllm.report_thread.HEARTBEAT_S", 0.001)
    failed = threading.Event()

    class Broken(Wire):
        def send(self, report: StepReport) -> bool:
            if report.duration_s == 0.0 and self.numbers:
                failed.set()
                raise ValueError("as it happens")
            return super().send(report)

    wire = Broken()
    reports, queue = Reports(wire), SimpleQueue[Boundary | UniformBoundary | None]()
    thread = ReportThread(reports, queue, BoundaryRecorder(reports, queue))
    queue.put(IDLE._replace(ended=MeasuredStep(BatchWork(7), 0.5)))
    assert failed.wait(10)
    queue.put(MOVING._replace(ended=MeasuredStep(BatchWork(7), 0.5)))
    thread.stop()
    assert len(wire.numbers) == 2


@pytest.mark.parametrize("peer", ["gone", "a file", "a stream", "a folder"])
def test_reports_are_dropped_if_the_sidecars_path_is_not_a_socket(path: Path, peer: str) -> None:
    other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    if peer == "a file":
        path.write_text("x")
    elif peer == "a folder":
        path.mkdir()
    elif peer == "a stream":
        other.bind(str(path))
        other.listen()
    reports = Reports(ReportSocket(path, WARN))
    for _ in range(3):
        reports.send(MOVING)
    assert reports.lost == 3
    other.close()
    reports.close()


def test_requests_are_reported_again_only_when_more_than_tokens_has_changed(path: Path) -> None:
    reports = Reports(ReportSocket(path, WARN))
    teller = BoundaryRecorder(reports, SimpleQueue())
    assert not teller.knows(3, (), 0.0)
    teller.record(MOVING._replace(changes=3), 0.0)
    assert teller.knows(3, (), WHOLE_EVERY_S / 2)
    assert not teller.knows(4, (), WHOLE_EVERY_S / 2)
    assert not teller.knows(3, (), WHOLE_EVERY_S)
    reports.broken = True
    assert not teller.knows(3, (), WHOLE_EVERY_S / 2)


def test_an_incremental_boundary_is_the_previous_one_with_its_changes(
    path: Path, reader: socket.socket
) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(MOVING._replace(preemptions=3, waiting=2))
    reports.send(UniformBoundary(MeasuredStep(BatchWork(7), 0.5), KvMemory(100, 60, 16), 0.04, 5))
    received_by(reader)
    further = received_by(reader)
    assert (further.preemptions, further.waiting, further.running) == (3, 2, 1)
    assert (further.tokens, further.duration_s, further.kv_blocks_free) == (7, 0.5, 60)
    assert (further.next_duration_s, further.since, further.further_tokens) == (0.04, 1, 5)
    reports.close()


def test_a_boundary_is_incremental_only_without_other_changes(path: Path) -> None:
    reports, queue = Reports(ReportSocket(path, WARN)), SimpleQueue[Boundary | UniformBoundary | None]()
    teller, further = BoundaryRecorder(reports, queue), UniformBoundary(None, KvMemory(100, 60, 16), 0.04, 5)
    assert not teller.repeat(MOVING.changes, further, 0.0), "nothing was reported before"
    teller.record(MOVING, 0.0)
    assert teller.repeat(MOVING.changes, further, WHOLE_EVERY_S / 2)
    assert not teller.repeat(MOVING.changes + 1, further, WHOLE_EVERY_S / 2)
    assert not teller.repeat(MOVING.changes, further, WHOLE_EVERY_S)
    for _ in range(MOST_QUEUED):
        teller.repeat(MOVING.changes, further, WHOLE_EVERY_S / 2)
    assert queue.qsize() == MOST_QUEUED
    reports.broken = True
    assert not teller.repeat(MOVING.changes, further, WHOLE_EVERY_S / 2)


def test_further_tokens_are_reported_only_after_a_report_that_was_received(path: Path) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(MOVING)
    assert reports.broken
    with closing(bound(path)) as reader:
        reports.send(MOVING._replace(uniform_steps=1, rows=None))  # no reader could use it
        reports.send(MOVING._replace(uniform_steps=2))
        reports.send(MOVING._replace(uniform_steps=5, rows=None))
        whole, further = received_by(reader), received_by(reader)
    assert (whole.sequence, list(whole.request_ids)) == (3, ["r1"])
    assert (further.sequence, further.since, further.further_tokens) == (4, 3, 3)
    reports.close()


def test_a_missing_receiver_and_its_return_are_logged_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = began_s = 1000.0
    monkeypatch.setattr("penstock_proto.report_socket.time.monotonic", lambda: now_s)
    ours = ReportSocket(path, WARN)
    with caplog.at_level("WARNING", "vllm.penstock"):
        ours.send(StepReport())
        now_s = began_s + WARN_AFTER_S / 2
        ours.send(StepReport())
        assert caplog.messages == []  # a sidecar that starts again is back by then
        now_s = began_s + WARN_AFTER_S
        for _ in range(2):
            ours.send(StepReport())
        with closing(bound(path)):
            for _ in range(2):
                ours.send(StepReport())
        path.unlink()
        for later_s in (0, WARN_AFTER_S):
            now_s = began_s + 2 * WARN_AFTER_S + later_s
            ours.send(StepReport())
    missing, back, missing_again = caplog.messages
    assert missing_again == missing
    assert missing.startswith(
        f"penstock: no reader of step reports at {path} (No such file or directory); is a"
    )
    assert back == f"penstock: step reports are read again at {path}; 4 were lost"
    ours.close()


def test_the_engine_s_own_bounds_are_reported(path: Path, reader: socket.socket) -> None:
    reports = Reports(ReportSocket(path, WARN), StepBounds(batch_tokens=512, running=16, longest_tokens=1024))
    reports.send(IDLE)
    report = received_by(reader)
    assert (report.most_batch_tokens, report.most_running) == (512, 16)
    reports.close()
