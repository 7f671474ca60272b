"""Steps in which an engine only decodes: each running request generates one token.

Most steps are of this kind. They are recognized by the columns of their reports. The mirror then records only
when the step ended, and advances its jobs later by several such steps at once.
"""

from typing import NamedTuple, Self

from penstock_proto.telemetry_pb2 import StepReport

MOST_STEPS = 64
"""Most steps recorded before jobs are advanced: about two seconds of steps."""


class DecodeRows(NamedTuple):
    """The rows of a report in which every request decodes, as columns."""

    request_ids: list[str]
    computed_tokens: list[int]
    generated_tokens: list[int]
    best_effort: list[bool]

    @classmethod
    def of(cls, report: StepReport) -> Self | None:
        """Return a report's rows; None if a request does not decode, or the report has other changes."""
        if report.waiting or report.prefilling or report.thinking_tokens or report.HasField("drafting"):
            return None
        generated_tokens = list(report.generated_tokens)
        if not generated_tokens or not all(generated_tokens) or report.running != len(generated_tokens):
            return None
        return cls(
            list(report.request_ids), list(report.computed_tokens), generated_tokens, list(report.best_effort)
        )

    def after_one_step(self) -> Self:
        """Return the rows after a step that only decodes."""
        return self._replace(
            computed_tokens=[tokens + 1 for tokens in self.computed_tokens],
            generated_tokens=[tokens + 1 for tokens in self.generated_tokens],
        )
