"""A thread that sends reports, so that the engine's own thread need not.

An engine's thread plans a step, submits it to its device and waits, without Python's lock. Meanwhile this
thread makes the report and sends it. If the queue was full, the reader detects the loss by a gap in the
report numbers.

While the queue is empty, it repeats the state of an idle engine every `HEARTBEAT_S`.

A report that cannot be made or sent is lost, and logged once for each type of error.
"""

import logging
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from penstock_vllm.reports import Boundary, BoundaryRecorder, Reports, UniformBoundary

log = logging.getLogger("vllm.penstock")

HEARTBEAT_S = 1.0
"""Seconds between repeated reports of an idle engine."""


class ReportThread:
    """Sends the boundaries that a `BoundaryRecorder` puts into its queue, until it is stopped."""

    def __init__(
        self,
        reports: Reports,
        queue: "SimpleQueue[Boundary | UniformBoundary | None]",
        recorder: BoundaryRecorder,
    ) -> None:
        self._reports, self._queue, self._recorder = reports, queue, recorder
        self._skipped_reported, self._logged = 0, set[str]()
        self._thread = threading.Thread(target=self._run, name="penstock-reports", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Send what is in the queue, then stop."""
        self._queue.put(None)
        self._thread.join()
        self._reports.close()

    def _run(self) -> None:
        while True:
            try:
                now = self._queue.get(timeout=HEARTBEAT_S)
            except Empty:
                self._contained(self._reports.repeat)
                continue
            if now is None:
                return
            skipped = self._recorder.skipped
            self._contained(self._reports.send, now, skipped - self._skipped_reported)
            self._skipped_reported = skipped

    def _contained(self, call: Callable[..., None], *args: Any) -> None:
        try:
            call(*args)
        except Exception as error:
            self._reports.record_loss()
            kind = type(error).__name__
            if kind not in self._logged:
                self._logged.add(kind)
                log.exception("penstock: a step report could not be sent: %s", kind)
