"""Step reports from the engine, over a Unix datagram socket that the sidecar owns.

The engine sends one report for each iteration and never waits; the sidecar reads all that have arrived. Each
report has the whole state, so the last one shows the current state, but each one measures an iteration. A gap
in their numbers shows how many were lost, and a changed instance shows a restart of the engine.
"""

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog
from google.protobuf.message import DecodeError
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.serving import StartError

DATAGRAM_BYTES = 1 << 20
"""Longest report that is read. Four thousand requests take about 100 KB."""

BUFFER_BYTES = 4 << 20
"""Kernel buffer for waiting reports, capped at net.core.rmem_max."""

MOST_REPORTS = 64
"""Most reports read within one turn of the event loop."""


log = structlog.get_logger()


@dataclass(slots=True)
class Continuity:
    """The last report's engine instance and number."""

    instance: str = ""
    sequence: int = 0

    def outdated(self, report: StepReport) -> bool:
        """Return whether a later report of the same engine was already received."""
        return report.engine_instance == self.instance and report.sequence < self.sequence

    def lost_before(self, report: StepReport) -> int:
        """Return how many reports were lost between the last one and this."""
        same, before = report.engine_instance == self.instance, self.sequence
        self.instance, self.sequence = report.engine_instance, report.sequence
        return max(report.sequence - before - 1, 0) if same else 0


class TelemetrySocket:
    """The socket, which receives until it is closed. receive: called with new reports, oldest first."""

    def __init__(self, path: Path, receive: Callable[[Sequence[StepReport]], None]) -> None:
        self._path, self._receive = path, receive
        self._buffer = bytearray(DATAGRAM_BYTES)
        self._socket, self._logged = _bind(path), ""
        self._inode = path.stat().st_ino
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._read)

    def close(self) -> None:
        """Stop receiving, and remove the socket's path."""
        self._loop.remove_reader(self._socket)
        self._socket.close()
        if _is_at(self._path, self._inode):
            self._path.unlink(missing_ok=True)

    def renew(self) -> None:
        """Bind again if the path was removed or replaced, because engines could not find the socket.

        A failure is logged once. Reports of engines that are connected to the old socket are still received.
        """
        if _is_at(self._path, self._inode):
            return
        try:
            renewed = _bind(self._path)
        except StartError as error:
            if str(error) != self._logged:
                log.warning("telemetry socket lost", cause=str(error))
            self._logged = str(error)
            return
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._socket, self._inode, self._logged = renewed, self._path.stat().st_ino, ""
        self._loop.add_reader(self._socket, self._read)
        log.warning("telemetry socket was removed and is bound again", path=str(self._path))

    def _read(self) -> None:
        reports: list[StepReport] = []
        with contextlib.suppress(BlockingIOError):
            while len(reports) < MOST_REPORTS:
                size = self._socket.recv_into(self._buffer)
                with contextlib.suppress(DecodeError):  # the gap in numbers counts it as lost
                    reports.append(StepReport.FromString(bytes(self._buffer[:size])))
        if reports:
            self._receive(reports)


def _bind(path: Path) -> socket.socket:
    """Return a bound socket, on the path of an ended process too. Raises StartError if the path is in use."""
    receiver = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    receiver.setblocking(False)
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
    try:
        if path.is_socket():
            _unlink_stale(path)
        receiver.bind(str(path))
        path.chmod(0o600)
    except OSError as error:
        receiver.close()
        cause = "taken" if error.errno == errno.EADDRINUSE else str(error.strerror or error).lower()
        raise StartError(f"cannot receive telemetry at {path}: {cause}") from None
    return receiver


def _is_at(path: Path, inode: int) -> bool:
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


def _unlink_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
