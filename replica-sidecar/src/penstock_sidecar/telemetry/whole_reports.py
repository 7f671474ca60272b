"""Step reports with the requests' columns, also where the engine has left them out.

Where an engine's requests are those of an earlier report, each running one some tokens further, it says just
that. The earlier report's columns and this one's numbers make the report that it stands for.
"""

from penstock_proto.telemetry_pb2 import StepReport


class WholeReports:
    """Remembers the last report that came with columns."""

    def __init__(self) -> None:
        self._base = StepReport()

    def see(self, report: StepReport) -> None:
        """A report has come."""
        if not report.since:
            self._base = report

    def of(self, report: StepReport) -> StepReport | None:
        """The report with its columns; None where those it names never came."""
        base, running = self._base, report.running
        if not report.since:
            return report
        if (base.sequence, base.engine_instance) != (report.since, report.engine_instance):
            return None
        further, whole = report.further_tokens, StepReport()
        whole.CopyFrom(report)
        for column, before in (
            (whole.computed_tokens, base.computed_tokens),
            (whole.generated_tokens, base.generated_tokens),
        ):
            column.extend([tokens + further for tokens in before[:running]])
            column.extend(before[running:])
        whole.request_ids.extend(base.request_ids)
        whole.best_effort.extend(base.best_effort)
        whole.thinking_tokens.extend(base.thinking_tokens)
        return whole
