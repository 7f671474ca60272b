"""Applies step reports: it corrects the time model, updates the mirror and counts lost reports."""

from collections.abc import Callable, Sequence

import structlog
from penstock_core.timing.time_model import BatchWork
from penstock_proto.telemetry_pb2 import StepReport
from penstock_runtime.clock import monotonic

from penstock_sidecar.metrics import Metrics
from penstock_sidecar.mirror.replica_mirror import ReplicaMirror
from penstock_sidecar.mirror.report_rows import is_valid
from penstock_sidecar.requests.estimates import Estimates
from penstock_sidecar.requests.faults import Faults
from penstock_sidecar.telemetry.policy_faults import PolicyFaults
from penstock_sidecar.telemetry.socket import Continuity
from penstock_sidecar.telemetry.whole_reports import WholeReports

log = structlog.get_logger()

SILENT_S = 30.0
"""Silence of a ready engine after which a warning is logged."""


class StepReports:
    """Applies reports to `estimates` and to the mirror.

    path: path of the socket, for the log.
    prompt_known: called with a request's key and its prompt's tokens, once a report shows them.
    prefixes_changed: called when the prefixes for routers have changed.
    applied: called after the mirror has applied a report.
    """

    def __init__(
        self,
        mirror: ReplicaMirror,
        estimates: Estimates,
        metrics: Metrics,
        prompt_known: Callable[[str, int], None],
        path: str = "",
        *,
        prefixes_changed: Callable[[], None] = lambda: None,
        applied: Callable[[], None] = lambda: None,
    ) -> None:
        self._path, self._applied = path, applied
        self._mirror, self._estimates, self._metrics = mirror, estimates, metrics
        self._prompt_known, self._prefixes_changed = prompt_known, prefixes_changed
        self._now_s = monotonic
        self._continuity = Continuity()
        self._received_s, self._silent = monotonic(), False
        self._faults = Faults(metrics.faults)
        self._complete_reports, self._policy_faults = WholeReports(), PolicyFaults(metrics.policy_faults)

    def receive(self, reports: Sequence[StepReport]) -> None:
        """Apply reports, oldest first. Each measures a step; the last one has the current state."""
        valid = list(filter(is_valid, reports))
        self._metrics.malformed.inc(len(reports) - len(valid))
        if valid:
            with self._faults.within("telemetry"):
                self._receive(valid)

    def _receive(self, reports: Sequence[StepReport]) -> None:
        self._received_s = self._now_s()
        if self._silent:
            self._silent = False
            log.info("engine reports again")
        before = self._mirror.prefixes.reported.count
        last: StepReport | None = None
        for report in reports:
            if not self._continuity.outdated(report):  # its state of the cache is outdated
                self._follow(report)
                self._measure(report)
                last = report
        if last is None:
            return
        if self._mirror.prefixes.reported.count != before:
            self._prefixes_changed()
        whole = self._complete_reports.restored(last)
        if whole is None:  # the report with its columns is lost: the next one with columns is complete
            self._metrics.lost.inc()
            return
        for key, prompt_tokens in self._mirror.apply(whole, self._now_s()):
            self._prompt_known(key, prompt_tokens)
        self._applied()

    def check_silence(self, engine_ready: bool) -> None:
        """Log once that a ready engine does not report. Called about every second.

        An idle engine reports too. During a long step its report is late by the duration of the step.
        """
        now_s = self._now_s()
        if not engine_ready:
            self._received_s = now_s
        elif not self._silent and now_s - self._received_s > SILENT_S:
            self._silent = True
            log.warning(
                "engine does not report: planning by forwarded tokens; start vLLM with "
                "--scheduler-cls penstock_vllm.scheduler.PenstockScheduler and PENSTOCK_TELEMETRY",
                telemetry=self._path,
                silent_s=SILENT_S,
            )

    def _follow(self, report: StepReport) -> None:
        known = self._continuity.instance
        lost = self._continuity.lost_before(report)
        self._metrics.reports.inc()
        self._metrics.lost.inc(lost)
        self._complete_reports.keep(report)
        self._mirror.prefixes.take(report, lost)
        self._policy_faults.add(report)
        if known and known != report.engine_instance:
            self._metrics.engine_restarts.inc()
            log.warning(
                "engine restarted",
                instance=report.engine_instance,
                kv_tokens=report.kv_blocks_total * report.block_tokens,
                block_tokens=report.block_tokens,
                most_running=report.most_running or "unknown",
                most_batch_tokens=report.most_batch_tokens or "unknown",
            )

    def _measure(self, report: StepReport) -> None:
        self._metrics.acceptance.set(report.drafting.acceptance)
        if not 0 < report.duration_s < float("inf"):  # 0: the engine was idle
            return
        work = BatchWork(report.tokens, report.context_tokens, report.prefill_work, report.spec_steps)
        self._metrics.time_error.observe(self._estimates.observe_step(work, report.duration_s))
        self._metrics.time_scale.set(self._estimates.model.scale)
