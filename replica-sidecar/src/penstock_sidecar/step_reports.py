"""What is done with the engine's step reports: measure, look, count what is missing."""

from collections.abc import Callable, Sequence
from time import monotonic

import structlog
from penstock_core.time_model import BatchWork
from penstock_proto.telemetry_pb2 import StepReport

from penstock_sidecar.learned import Learned
from penstock_sidecar.metrics import Metrics
from penstock_sidecar.replica_mirror import ReplicaMirror
from penstock_sidecar.telemetry import Continuity

log = structlog.get_logger()


class StepReports:
    """Feeds reports to what learns from them and to the mirror.

    prompt_known: called with a request's key and its prompt's tokens, once the engine has revealed them.
    """

    def __init__(
        self,
        mirror: ReplicaMirror,
        learned: Learned,
        metrics: Metrics,
        prompt_known: Callable[[str, int], None],
    ) -> None:
        self._mirror, self._learned, self._metrics = mirror, learned, metrics
        self._prompt_known = prompt_known
        self._now_s = monotonic
        self._continuity = Continuity()

    def receive(self, reports: Sequence[StepReport]) -> None:
        """Reports that came since the last time, oldest first. Each measures a step; the last is now."""
        for report in reports:
            self._follow(report)
            self._measure(report)
        for key, prompt_tokens in self._mirror.apply(reports[-1], self._now_s()):
            self._prompt_known(key, prompt_tokens)

    def _follow(self, report: StepReport) -> None:
        known = self._continuity.instance
        lost = self._continuity.lost_before(report)
        self._metrics.reports.inc()
        self._metrics.lost.inc(lost)
        if known and known != report.engine_instance:
            self._metrics.engine_restarts.inc()
            log.warning("engine restarted", instance=report.engine_instance)

    def _measure(self, report: StepReport) -> None:
        self._metrics.acceptance.set(report.drafting.acceptance)
        if not 0 < report.duration_s < float("inf"):  # 0: the engine was idle
            return
        work = BatchWork(report.tokens, report.context_tokens, report.prefill_work, report.spec_steps)
        self._metrics.time_error.observe(self._learned.step(work, report.duration_s))
        self._metrics.time_scale.set(self._learned.model.scale)
