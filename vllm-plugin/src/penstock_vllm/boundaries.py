"""Records step boundaries for reports on the engine's own thread: one small object each.

`reports` describes the contents of a report, and `report_thread` sends it. Without telemetry no boundary is
recorded, and changes of the prefix cache are not looked up either.
"""

import logging
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from penstock_core.timing.speculation import Speculation
from penstock_proto.report_socket import ReportSocket

from penstock_vllm.faults import PolicyFaultLog
from penstock_vllm.ledger import EngineLedger, HeldRequest
from penstock_vllm.pipeline import MeasuredStep, Pipeline
from penstock_vllm.prefix_cache import CacheLookup
from penstock_vllm.report_thread import ReportThread
from penstock_vllm.reports import Boundary, BoundaryRecorder, CacheReport, Reports, UniformBoundary, rows_of
from penstock_vllm.settings import PluginSettings
from penstock_vllm.view import KvMemory, StepBounds

log = logging.getLogger("vllm.penstock")


class BoundaryReports:
    """Reports the boundaries of one engine's steps.

    held_running: returns the requests that hold KV.
    recorder: None without telemetry. ended: the step that has ended since the last boundary.
    """

    def __init__(
        self,
        ledger: EngineLedger,
        pipeline: Pipeline,
        faults: PolicyFaultLog,
        prefixes: CacheLookup | None,
        held_running: Callable[[], Sequence[HeldRequest]],
    ) -> None:
        self._ledger, self._pipeline, self._faults, self._prefixes = ledger, pipeline, faults, prefixes
        self._held_running = held_running
        self.recorder: BoundaryRecorder | None = None
        self.ended: MeasuredStep | None = None
        self._thread: ReportThread | None = None

    def start(self, reports: Reports) -> None:
        """Send the boundaries from now on, by a thread."""
        queue = SimpleQueue[Any]()
        self.recorder = BoundaryRecorder(reports, queue)
        self._thread = ReportThread(reports, queue, self.recorder)

    def stop(self) -> None:
        """Send the remaining reports, and stop."""
        if self._thread is not None:
            self._thread.stop()

    def _of_cache(self) -> CacheReport | None:
        """Return the prefix cache's report; its changes are returned once."""
        return None if self._prefixes is None else self._prefixes.report(self._ledger)

    def repeat(
        self, memory: KvMemory, speculation: Speculation | None, now_s: float, *, memory_changed: bool
    ) -> None:
        """Report one token more of every running request. memory_changed: since the last boundary."""
        if self.recorder is None:
            return
        ledger, left_s = self._ledger, self._pipeline.left_s(now_s)
        cache = self._of_cache() if memory_changed else None
        further = UniformBoundary(self.ended, memory, left_s, ledger.uniform_steps, cache)
        if self.recorder.repeat(ledger.changes, further, now_s):
            self.ended = None
        else:
            self.record(memory, speculation, now_s, cache)

    def record(
        self,
        memory: KvMemory,
        speculation: Speculation | None,
        now_s: float,
        cache: CacheReport | None = None,
    ) -> None:
        """Report this boundary. cache: the prefix cache's report, if it was made already."""
        recorder = self.recorder
        if recorder is None:
            return
        ledger, pipeline, faults = self._ledger, self._pipeline, self._faults.counted
        running, rows = self._held_running(), None
        if not running or not recorder.knows(ledger.changes, pipeline.steps, now_s):
            rows = rows_of(running, ledger, pipeline.steps)
        ended, self.ended = self.ended, None
        now = Boundary(
            ended,
            len(running),
            len(ledger.waiting),
            ledger.preemptions,
            memory,
            pipeline.left_s(now_s),
            speculation,
            faults.copy() if faults else faults,
            ledger.changes,
            ledger.uniform_steps,
            rows,
            self._of_cache() if cache is None else cache,
        )
        recorder.record(now, now_s)


def reports_of(settings: PluginSettings, bounds: StepBounds) -> Reports | None:
    """Return the reports to the sidecar; None without telemetry."""
    if settings.telemetry is None:
        return None
    return Reports(ReportSocket(settings.telemetry, log.warning), bounds, settings.tickets)
