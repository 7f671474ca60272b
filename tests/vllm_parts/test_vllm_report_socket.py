"""The engine's end of the telemetry socket: lossy, never blocking, and back as soon as somebody listens."""

import logging
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from penstock_core.time_model import BatchWork
from penstock_proto.report_socket import UNHEARD_S, ReportSocket
from penstock_proto.telemetry_pb2 import StepReport
from penstock_vllm.ledger import Ledger
from penstock_vllm.pipeline import Measured
from penstock_vllm.reports import Boundary, Heartbeat, Reports
from penstock_vllm.view import Bounds, Memory

WARN = logging.getLogger("vllm.penstock").warning
IDLE = Boundary(0.0, None, [], Ledger(), Memory(100, 100, 16), (), 0.0, None, {})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reports.sock"


@pytest.fixture
def reader(path: Path) -> Iterator[socket.socket]:
    with closing(bound(path)) as receiver:
        yield receiver


def bound(path: Path) -> socket.socket:
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.bind(str(path))
    receiver.settimeout(10)
    return receiver


def heard(receiver: socket.socket) -> StepReport:
    return StepReport.FromString(receiver.recv(1 << 20))


def test_reports_are_lost_until_somebody_listens(path: Path) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(IDLE)
    assert reports.lost == 1
    with closing(bound(path)) as reader:
        reports.send(IDLE)
        assert heard(reader).sequence == 2
    path.unlink()
    reports.send(IDLE)
    with closing(bound(path)) as reader:
        reports.send(IDLE._replace(ended=Measured(BatchWork(7), 0.5)))
        report = heard(reader)
        assert (report.sequence, report.tokens, report.duration_s) == (4, 7, 0.5)
    reports.close()


def test_a_reader_that_is_behind_costs_reports_and_no_time(path: Path, reader: socket.socket) -> None:
    ours = ReportSocket(path, WARN)
    for _ in range(5000):
        ours.send(StepReport(kv_blocks_total=1))
    assert ours.lost > 0
    assert heard(reader).kv_blocks_total == 1
    ours.close()


def test_a_report_too_long_for_a_datagram_goes_without_the_last_who_wait(
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
    report = heard(reader)
    assert 10 <= len(report.request_ids) < len(names)
    assert len(report.computed_tokens) == len(report.best_effort) == len(report.request_ids)
    assert report.waiting == len(names) - 10
    assert ours.lost == 0
    ours.close()


def test_an_idle_engine_says_so_again_and_a_working_one_does_not(path: Path, reader: socket.socket) -> None:
    reports = Reports(ReportSocket(path, WARN))
    reports.send(IDLE)
    reports.repeat()  # it has just spoken
    reports.repeat()
    assert [heard(reader).sequence for _ in range(2)] == [1, 2]
    reports.send(IDLE._replace(left_s=0.1))
    reports.repeat()
    reports.repeat()
    reports.send(IDLE)
    assert [heard(reader).sequence for _ in range(2)] == [3, 4]
    reports.close()


def test_the_heartbeat_ends_when_it_is_told(path: Path) -> None:
    heartbeat = Heartbeat(Reports(ReportSocket(path, WARN)))
    assert "penstock-heartbeat" in {thread.name for thread in threading.enumerate()}
    heartbeat.stop()
    assert "penstock-heartbeat" not in {thread.name for thread in threading.enumerate()}


def test_that_nobody_takes_reports_is_said_once_and_that_somebody_does_again(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    monkeypatch.setattr("penstock_proto.report_socket.time.monotonic", lambda: now_s)
    ours = ReportSocket(path, WARN)
    with caplog.at_level("WARNING", "vllm.penstock"):
        ours.send(StepReport())
        now_s = UNHEARD_S / 2
        ours.send(StepReport())
        assert caplog.messages == []  # a sidecar that starts again is back by then
        now_s = UNHEARD_S
        for _ in range(2):
            ours.send(StepReport())
        with closing(bound(path)):
            for _ in range(2):
                ours.send(StepReport())
    missing, back = caplog.messages
    assert missing.startswith(
        f"penstock: nobody takes step reports at {path} (No such file or directory); is a"
    )
    assert back == f"penstock: step reports are taken again at {path}; 4 were lost"
    ours.close()


def test_the_engine_s_own_bounds_are_reported(path: Path, reader: socket.socket) -> None:
    reports = Reports(ReportSocket(path, WARN), Bounds(batch_tokens=512, running=16, longest_tokens=1024))
    reports.send(IDLE)
    report = heard(reader)
    assert (report.most_batch_tokens, report.most_running) == (512, 16)
    reports.close()
