"""What a replica believes of its answers' lengths: nothing but the truth, or what it has learned."""

from collections.abc import Callable
from typing import Protocol

from penstock_core.domain.request import Job, Request
from penstock_core.forecast.length_predictor import LengthPredictor

from penstock_simulator.simulation.fleet import Lengths


class AnswerLengths(Protocol):
    """Lengths to plan with.

    longer: asked for a job that has outrun its prediction; None where that cannot be.
    """

    longer: Callable[[Job], int] | None

    def first(self, request: Request, true_tokens: int) -> int:
        """Of a request that has just come."""

    def sure(self, request: Request, true_tokens: int) -> int:
        """`Job.sure_tokens`. true_tokens: of its first stage, if it has two."""

    def observe(self, request: Request, tokens: int) -> None:
        """An answer has ended."""


class Known:
    """The truth."""

    longer: Callable[[Job], int] | None = None

    def first(self, request: Request, true_tokens: int) -> int:
        """As it will be."""
        return true_tokens

    def sure(self, request: Request, true_tokens: int) -> int:
        """As it will be."""
        return true_tokens

    def observe(self, request: Request, tokens: int) -> None:
        """Nothing that was not known."""


class Learned:
    """One replica's own predictor, as its sidecar has one: it learns as answers finish."""

    def __init__(self) -> None:
        self._predictor = LengthPredictor()
        self.longer: Callable[[Job], int] | None = self._longer

    def first(self, request: Request, true_tokens: int) -> int:
        """A quantile of those that finished before."""
        return self._predict(request, 0)

    def sure(self, request: Request, true_tokens: int) -> int:
        """A low quantile of them."""
        return self._predictor.sure(request)

    def observe(self, request: Request, tokens: int) -> None:
        """One more of its tier and prompt length."""
        cut_short = tokens >= request.max_output_tokens
        self._predictor.observe(request.tier, request.prompt_tokens, tokens, cut_short=cut_short)

    def _longer(self, job: Job) -> int:
        return self._predict(job.request, job.generated_tokens)

    def _predict(self, request: Request, generated_tokens: int) -> int:
        return self._predictor.predict(
            request.tier, request.prompt_tokens, generated_tokens, request.max_output_tokens
        )


def answer_lengths(kind: Lengths) -> AnswerLengths:
    """One replica's."""
    return Known() if kind is Lengths.KNOWN else Learned()
