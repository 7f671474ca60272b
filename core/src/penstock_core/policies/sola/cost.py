"""SOLA's predicted cost of an iteration, and its online correction [SOLA, §5.2].

The paper fits two polynomials, one for prefill and one for decode:

    C_p = a0·Σ l_has·l_in + b0·Σ l_in² + c0·Σ l_in + d0        C_d = a1·Σ 1 + b1·Σ l_has + c1

A time model has the same terms (prefill work, tokens, decode context, fixed cost), so it is used for both;
its roofline adds that small batches cost as much as loading the weights. A mixed iteration is the sum of the
two. That counts the fixed cost twice, which the paper leaves to its online correction ("γ implicitly reflects
the batching effect"):

    γ_i = α·t/C_0 + (1 − α)·γ_{i−1}        C_i = γ_i·C_0

Since only mixed iterations have that effect, each kind of iteration has its own γ.

t is the time from one view to the next, which is the duration of the step between them if the engine did not
pause; that is assumed if a request of that step is still running. The view's model is already corrected
online and pessimistic, by a margin that one iteration in forty exceeds. γ is learned on top of it and is
about 1/margin for plain iterations, so SOLA plans with means, as published. When the model changes, γ adapts
to the remaining difference. A pause or a stall counts as a factor of at most two.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_core.batch.open_batch import OpenBatch
from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import RequestId
from penstock_core.timing.time_model import BatchWork, TimeModel, line_seconds

CONFIDENCE = 0.1
"""α. The paper does not give its value. Ten iterations are about half a second of an engine's work."""

LARGEST_CHANGE = 2.0
"""Largest ratio to the prediction, or its inverse, by which one iteration changes γ."""


class Gammas(NamedTuple):
    """Measured over predicted time, by kind of iteration."""

    prefill: float = 1.0
    decode: float = 1.0
    mixed: float = 1.0


class Sent(NamedTuple):
    """The last step, until its duration is known.

    kind: the γ that it updates. predicted_s: C_0, without γ.
    """

    at_s: float
    kind: str
    predicted_s: float
    jobs: Mapping[RequestId, int]


@dataclass(frozen=True, slots=True)
class Costs:
    """C_p and C_d of the next iteration."""

    model: TimeModel
    gammas: Gammas

    def prefill_s(self, tokens: Ints, work: Floats) -> Floats:
        """Return C_p of batches with these prompt tokens and this attention."""
        return self.gammas.prefill * _prefill_s(self.model, tokens, work)

    def decode_s(self, decodes: BatchWork) -> float:
        """Return C_d of these decodes."""
        return self.gammas.decode * self.model.seconds(decodes)

    def mixed_s(self, tokens: Ints, work: Floats, decodes: BatchWork) -> Floats:
        """Return C_p + C_d, for prompt tokens and decodes."""
        return self.gammas.mixed * (_prefill_s(self.model, tokens, work) + self.model.seconds(decodes))


def _prefill_s(model: TimeModel, tokens: Ints, work: Floats) -> Floats:
    """Compute `TimeModel.seconds` of many batches of prompts at once."""
    roofline_s: Floats = np.maximum.reduce([line_seconds(term, tokens, 0) for term in model.terms])
    scale = model.scale * model.prefill_scale
    return scale * (roofline_s + model.prefill_work_s * work + model.overhead_s)


def sent(batch: OpenBatch) -> Sent | None:
    """Return the prediction to compare with a finished batch; None for an empty one.

    A chunk of a single token counts as a decode.
    """
    if not batch.tokens:
        return None
    work = batch.work
    prompt_tokens = sum([tokens for tokens in batch.tokens.values() if tokens > 1])
    prompts = BatchWork(prompt_tokens, 0, work.prefill_work)
    decodes = work._replace(tokens=work.tokens - prompt_tokens, prefill_work=0.0)
    kind = "decode" if not prompts.tokens else "mixed" if decodes.tokens else "prefill"
    model = batch.view.model
    return Sent(batch.view.now_s, kind, model.seconds(prompts) + model.seconds(decodes), batch.tokens)


def learned(gammas: Gammas, last: Sent | None, view: ReplicaView) -> Gammas:
    """Return the γ after the last step, if its duration is known [eq. 5]."""
    if last is None or not any(job.request.id in last.jobs for job in view.running):
        return gammas
    gamma: float = getattr(gammas, last.kind)
    ratio = (view.now_s - last.at_s) / last.predicted_s
    bounded = min(max(ratio, gamma / LARGEST_CHANGE), gamma * LARGEST_CHANGE)
    return gammas._replace(**{last.kind: CONFIDENCE * bounded + (1 - CONFIDENCE) * gamma})
