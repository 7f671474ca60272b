"""Estimates about this replica's engine: its speed, and lengths of prompts and answers.

This module has the state; core has the estimators. Each has a prior, so all are usable from the start.
Methods `observe_…` update an estimate by a measured value.
"""

from math import ceil

from penstock_core.domain.request import Job, Request
from penstock_core.forecast.length_predictor import LengthPredictor
from penstock_core.forecast.prompt_length import PromptLength
from penstock_core.timing.admission_margin import AdmissionMargin, judged, margin_at, widened
from penstock_core.timing.correction import Correction, corrected, expected, observe, rested
from penstock_core.timing.delivery_time import delivered, delivery_time
from penstock_core.timing.time_model import BatchWork, TimeModel

from penstock_sidecar.mirror.prefix_index import SharedPrefix
from penstock_sidecar.requests.client_body import ClientBody


class Estimates:
    """Estimates, corrected as the engine is observed.

    fitted: the time model before corrections. Slowdown targets refer to it, so they do not change with the
        engine.
    model: the time model for plans: corrected, with a margin for iterations that take longer.

    delivery_s: least time that is subtracted from targets for transport to and from the engine.
    idle_delivery_s: that time of an idle engine, if it was measured; counts until there are enough streams.
    """

    def __init__(self, fitted: TimeModel, delivery_s: float = 0.0, idle_delivery_s: float = 0.0) -> None:
        self.fitted = fitted
        self._delivery = delivery_time(delivery_s, idle_delivery_s)
        self._correction = Correction()
        self._margin = AdmissionMargin()
        self._lengths = LengthPredictor()
        self._prompts = PromptLength()
        self.model = self._expected = fitted

    def observe_step(self, work: BatchWork, seconds: float) -> float:
        """Update the time model by a measured iteration. Return the relative error of its mean prediction."""
        predicted_s = self._expected.seconds(work)
        self._correct(observe(self._correction, self.fitted, work, seconds))
        return abs(seconds / predicted_s - 1) if predicted_s else 0.0

    def observe_judgement(self, met: bool, now_s: float) -> None:
        """Update the margin for admission. met: whether an admitted request that has ended met its SLO."""
        self._margin = judged(self._margin, met, now_s)

    @property
    def delivery_s(self) -> float:
        """The time to subtract from targets of first tokens and whole answers for transport."""
        return self._delivery.seconds

    @property
    def learned_delivery_s(self) -> float:
        """The learned part of `delivery_s`, which this replica's own times of a request contain."""
        return self._delivery.seconds - self._delivery.least_s

    def observe_delivery(self, seconds: float) -> None:
        """Update the time of delivery by that of one request."""
        self._delivery = delivered(self._delivery, seconds)

    def admission_model(self, now_s: float) -> TimeModel:
        """Return the time model for admission: slower if too few admitted requests meet their SLO."""
        return widened(self.model, self._margin, now_s)

    def admission_margin(self, now_s: float) -> float:
        """Return the margin of admission: a factor on planned durations, at least 1."""
        return margin_at(self._margin, now_s)

    def observe_idle(self, seconds: float) -> None:
        """Let the correction decay by the time that the engine has been idle."""
        self._correct(rested(self._correction, seconds))

    def _correct(self, correction: Correction) -> None:
        self._correction = correction
        self.model = corrected(self.fitted, correction)
        self._expected = expected(self.fitted, correction)

    def prompt_tokens(self, body: ClientBody, prefix: SharedPrefix | None = None) -> int:
        """Return a prompt's tokens: counted if it is given as ids, else estimated beyond a known prefix."""
        if body.prompt_token_ids is not None:
            return body.prompt_token_ids
        if prefix is None or not prefix.exact:
            return self._prompts.estimate(body.text_bytes, body.messages)
        new_share = 1 - prefix.share
        rest_tokens = self._prompts.estimate(
            ceil(new_share * body.text_bytes), ceil(new_share * body.messages)
        )
        return prefix.tokens + rest_tokens * (new_share > 0)

    def observe_prompt(self, body: ClientBody, prompt_tokens: int) -> None:
        """Update the estimate of prompt lengths by the engine's count of a prompt."""
        if body.prompt_token_ids is None:
            self._prompts = self._prompts.observe(body.text_bytes, body.messages, prompt_tokens)

    def output_tokens(self, request: Request, generated_tokens: int) -> int:
        """Return the predicted length of an answer. generated_tokens: tokens generated so far."""
        return self._lengths.predict(
            request.tier, request.prompt_tokens, generated_tokens, request.max_output_tokens
        )

    def sure_tokens(self, request: Request) -> int:
        """Return a request's `Job.sure_tokens`."""
        return self._lengths.sure(request)

    def longer_output_tokens(self, job: Job) -> int:
        """Return a new predicted length for a job that has exceeded its prediction."""
        return self.output_tokens(job.request, job.generated_tokens)

    def observe_answer(self, request: Request, prompt_tokens: int, output_tokens: int) -> None:
        """Update the length predictor by the length of a complete answer."""
        cut_short = output_tokens >= request.max_output_tokens
        self._lengths.observe(request.tier, prompt_tokens, output_tokens, cut_short=cut_short)
