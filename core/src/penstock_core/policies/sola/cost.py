"""What SOLA expects an iteration to cost, and how it learns from what iterations did cost [SOLA, §5.2].

The paper fits two polynomials, one for prefill and one for decode:

    C_p = a0·Σ l_has·l_in + b0·Σ l_in² + c0·Σ l_in + d0        C_d = a1·Σ 1 + b1·Σ l_has + c1

A time model has these very terms (prefill work, tokens, decode context, fixed cost), so it stands for both;
its roofline adds that small batches cost as much as loading the weights. A mixed iteration is the sum of the
two. That counts the fixed cost twice, which the paper leaves to its online correction ("γ implicitly reflects
the batching effect"):

    γ_i = α·t/C_0 + (1 − α)·γ_{i−1}        C_i = γ_i·C_0

Since only mixed iterations have that effect, each kind of iteration has a γ of its own.

t is the time from one view to the next, which is how long the step between them took if the engine worked on
without a pause: so it is where a request of that step is still running. The view's model is corrected online
already and leans to the safe side, by a margin that one iteration in forty exceeds. γ is learned on top of
it: about 1/margin for plain iterations, so that SOLA plans with means, as published. When the model moves,
γ sees only what is left. A pause or a stall counts as a factor of two at most.
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
"""α. The paper gives no number; ten iterations are about half a second of an engine's work."""

MOST_SURPRISE = 2.0
"""One iteration moves γ no more than if it had taken this many times what was expected, or as much less."""


class Gammas(NamedTuple):
    """Measured over predicted time, by what is in an iteration."""

    prefill: float = 1.0
    decode: float = 1.0
    mixed: float = 1.0


class Sent(NamedTuple):
    """The last step, until it is known how long it took.

    kind: which of the γ it teaches. predicted_s: C_0, before any γ.
    """

    at_s: float
    kind: str
    predicted_s: float
    jobs: Mapping[RequestId, int]


@dataclass(frozen=True, slots=True)
class Costs:
    """C_p and C_d of the iteration to come."""

    model: TimeModel
    gammas: Gammas

    def prefill_s(self, tokens: Ints, work: Floats) -> Floats:
        """C_p of batches with so many prompt tokens and so much attention, each."""
        return self.gammas.prefill * _prefill_s(self.model, tokens, work)

    def decode_s(self, decodes: BatchWork) -> float:
        """C_d of these decodes."""
        return self.gammas.decode * self.model.seconds(decodes)

    def mixed_s(self, tokens: Ints, work: Floats, decodes: BatchWork) -> Floats:
        """C_p + C_d, for some prompt tokens and some decodes."""
        return self.gammas.mixed * (_prefill_s(self.model, tokens, work) + self.model.seconds(decodes))


def _prefill_s(model: TimeModel, tokens: Ints, work: Floats) -> Floats:
    """`TimeModel.seconds` of many batches of prompts at once."""
    roofline_s: Floats = np.maximum.reduce([line_seconds(term, tokens, 0) for term in model.terms])
    return model.scale * (roofline_s + model.prefill_work_s * work + model.overhead_s)


def sent(batch: OpenBatch) -> Sent | None:
    """What there is to learn from a finished batch; None from an empty one.

    A chunk of a single token passes for a decode.
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
    """The γ after the last step, where its duration can be told [eq. 5]."""
    if last is None or not any(job.request.id in last.jobs for job in view.running):
        return gammas
    gamma: float = getattr(gammas, last.kind)
    ratio = (view.now_s - last.at_s) / last.predicted_s
    believed = min(max(ratio, gamma / MOST_SURPRISE), gamma * MOST_SURPRISE)
    return gammas._replace(**{last.kind: CONFIDENCE * believed + (1 - CONFIDENCE) * gamma})
