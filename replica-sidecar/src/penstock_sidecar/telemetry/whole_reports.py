"""Restores the columns that the engine left out of step reports.

If an engine's requests are the same as in an earlier report, and each running one has advanced by the same
number of tokens, the report has that number instead of columns.
"""

from penstock_proto.telemetry_pb2 import StepReport


class WholeReports:
    """Restores columns from the last report that has them."""

    def __init__(self) -> None:
        self._base = StepReport()

    def keep(self, report: StepReport) -> None:
        """Keep a report if it has columns."""
        if not report.since:
            self._base = report

    def restored(self, report: StepReport) -> StepReport | None:
        """Return a report with its columns; None if the report that has them was lost."""
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
        whole.cached_tokens.extend(base.cached_tokens)
        whole.unheld_blocks.extend(base.unheld_blocks)
        whole.sharing.extend(base.sharing)
        whole.common_blocks.extend(base.common_blocks)
        return whole
