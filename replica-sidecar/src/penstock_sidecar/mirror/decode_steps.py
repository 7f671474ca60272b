"""Steps in which an engine only decodes: one token more of each running request, and nothing else.

Most steps are such. Their reports are recognized by their columns, so that the mirror notes when the step
ended, and advances its jobs later, for all these steps together.
"""

from typing import NamedTuple, Self

from penstock_proto.telemetry_pb2 import StepReport

MOST_STEPS = 64
"""Steps noted at once: two seconds of them."""


class DecodeRows(NamedTuple):
    """The rows of a report in which every request decodes."""

    request_ids: list[str]
    computed_tokens: list[int]
    generated_tokens: list[int]
    best_effort: list[bool]

    @classmethod
    def of(cls, report: StepReport) -> Self | None:
        """Return a report's rows; None where a request does not decode, or more than rows can change."""
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
