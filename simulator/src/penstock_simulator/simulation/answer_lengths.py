"""The answer lengths that a replica plans with: true lengths, or predictions learned online."""

from collections.abc import Callable
from typing import Protocol

from penstock_core.domain.request import Job, Request
from penstock_core.forecast.length_predictor import LengthPredictor

from penstock_simulator.simulation.fleet import LengthKnowledge


class AnswerLengths(Protocol):
    """Source of the lengths that a replica plans with.

    extend_prediction: new prediction for a job that has reached its prediction; None if none ever does.
    """

    extend_prediction: Callable[[Job], int] | None

    def first(self, request: Request, true_tokens: int) -> int:
        """Return the predicted answer length of a new request."""

    def sure(self, request: Request, true_tokens: int) -> int:
        """Return `Job.sure_tokens`. true_tokens: length of the thinking stage, if there is one."""

    def observe(self, request: Request, tokens: int) -> None:
        """Update predictions with an answer that has ended."""


class KnownLengths:
    """True lengths."""

    extend_prediction: Callable[[Job], int] | None = None

    def first(self, request: Request, true_tokens: int) -> int:
        """Return the true length."""
        return true_tokens

    def sure(self, request: Request, true_tokens: int) -> int:
        """Return the true length."""
        return true_tokens

    def observe(self, request: Request, tokens: int) -> None:
        """Do nothing."""


class LearnedLengths:
    """One replica's own length predictor, as in its sidecar: it learns from finished answers."""

    def __init__(self) -> None:
        self._predictor = LengthPredictor()
        self.extend_prediction: Callable[[Job], int] | None = self._extend_prediction

    def first(self, request: Request, true_tokens: int) -> int:
        """Return a quantile of the lengths of similar finished answers."""
        return self._predict(request, 0)

    def sure(self, request: Request, true_tokens: int) -> int:
        """Return a low quantile of the lengths of similar finished answers."""
        return self._predictor.sure(request)

    def observe(self, request: Request, tokens: int) -> None:
        """Record an answer for its tier and prompt length."""
        cut_short = tokens >= request.max_output_tokens
        self._predictor.observe(request.tier, request.prompt_tokens, tokens, cut_short=cut_short)

    def _extend_prediction(self, job: Job) -> int:
        return self._predict(job.request, job.generated_tokens)

    def _predict(self, request: Request, generated_tokens: int) -> int:
        return self._predictor.predict(
            request.tier, request.prompt_tokens, generated_tokens, request.max_output_tokens
        )


def answer_lengths(kind: LengthKnowledge) -> AnswerLengths:
    """Return one replica's lengths."""
    return KnownLengths() if kind is LengthKnowledge.KNOWN else LearnedLengths()
