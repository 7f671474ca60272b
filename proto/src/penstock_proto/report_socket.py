"""The engine's end of the telemetry socket: one datagram per step over a local Unix socket, lossy by design.

The sidecar binds the socket. The engine connects whenever it is not connected, so the two may start and
restart in any order. A report that cannot be sent immediately is dropped and counted; the next complete
report makes up for it.

A datagram is at most as long as the socket's send buffer, 200 kB on an untuned Linux: rows of some 4,000
requests; and never longer than `LONGEST_BYTES`, for which readers allocate space. A longer report omits the
rows of the requests that were queued last; its `waiting` still counts them all.
"""

import errno
import socket
import time
from collections.abc import Callable
from pathlib import Path

from penstock_proto.telemetry import StepReport

SEND_BUFFER_BYTES = 4 << 20
"""Send buffer that is requested of the kernel, which grants at most net.core.wmem_max."""

LONGEST_BYTES = 1 << 20
"""Longest report; readers allocate this much."""

WARN_AFTER_S = 30.0
"""Time without a receiver after which a warning is logged. A sidecar restarts faster."""


class ReportSocket:
    """Sends an engine's reports to its sidecar.

    warn: logs a line when reports cannot be sent for long. lost: reports that were not sent.
    """

    def __init__(self, path: Path, warn: Callable[..., object]) -> None:
        self._path, self._warn = str(path), warn
        self._socket: socket.socket | None = None
        self._failing_s: float | None = None
        self._warned = False
        self.lost = 0

    def send(self, report: StepReport) -> bool:
        """Send a report, or drop it. Returns whether it was sent.

        Never blocks, and does not raise if there is no reader.
        """
        try:
            taken = self._deliver(report)
        except OSError as error:
            self.close()
            self._note_failure(error)
            taken = False
        else:
            if self._failing_s is not None:
                self._note_recovery()
        self.lost += not taken
        return taken

    def close(self) -> None:
        """Close the socket; the next report opens it again."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _note_failure(self, error: OSError) -> None:
        now_s = time.monotonic()
        if self._failing_s is None:
            self._failing_s = now_s
        if not self._warned and now_s - self._failing_s >= WARN_AFTER_S:
            self._warned = True
            self._warn(
                "penstock: no reader of step reports at %s (%s); is a sidecar running with --telemetry %s? "
                "Until then the engine continues, and admission plans without reports",
                self._path,
                error.strerror or error,
                self._path,
            )

    def _note_recovery(self) -> None:
        if self._warned:
            self._warn("penstock: step reports are read again at %s; %d were lost", self._path, self.lost)
        self._failing_s, self._warned = None, False

    def _deliver(self, report: StepReport) -> bool:
        if self._socket is None:
            self._socket = _connected(self._path)
        while True:
            try:
                data = report.SerializeToString()
                if len(data) > LONGEST_BYTES:
                    raise OSError(errno.EMSGSIZE, "longer than readers accept")
                self._socket.send(data)
                return True
            except BlockingIOError:  # the reader is too slow: this report is lost, but the socket still works
                return False
            except OSError as error:
                if error.errno != errno.EMSGSIZE or len(report.request_ids) <= report.running:
                    raise
                _drop_half_of_the_waiting(report)


def _connected(path: str) -> socket.socket:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
        sender.connect(path)
    except OSError:
        sender.close()
        raise
    return sender


def _drop_half_of_the_waiting(report: StepReport) -> None:
    keep = report.running + (len(report.request_ids) - report.running) // 2
    for column in (
        report.request_ids,
        report.computed_tokens,
        report.generated_tokens,
        report.best_effort,
        report.thinking_tokens,
    ):
        del column[keep:]
    for of_waiting in (report.cached_tokens, report.unheld_blocks):
        del of_waiting[keep - report.running :]
