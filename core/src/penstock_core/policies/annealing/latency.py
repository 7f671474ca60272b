"""How long a batch of requests takes from its first prompt token to each one's last [annealing, §4.2].

The paper's latency predictor. A batch runs by itself: its b prompts are prefilled together, then its answers
are decoded together. Prefill and one token of decode are bilinear in the batch's size and a length (eq. 14
and 15), and a whole answer is the sum over its tokens, which has a closed form (eq. 16):

    prefill(b, l_i)      = α_p·b·l_i + β_p·b + γ_p·l_i + δ_p
    token(b, l_a)        = α_d·b·l_a + β_d·b + γ_d·l_a + δ_d
    decode(b, l_i, l_o)  = Σ over k = 1..l_o of token(b, l_i + k)
                         = (α_d·b + γ_d)·(l_o·l_i + l_o·(l_o + 1)/2) + (β_d·b + δ_d)·l_o

The coefficients are the least-squares solution over profiled batches. Where an engine is already known by a
time model of iterations, its batches are computed instead of measured, on the paper's grid of sizes and of
lengths below 2k, and fitted alike. The fit is made for the model at scale 1 and scaled, so a correction
learned online costs nothing.

Lengths past the grid are extrapolated. An iteration model is not quite bilinear, and a fit of squared errors
serves large batches first.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work

Amount = TypeVar("Amount", float, Floats)
"""One number, or an array of them."""

GRID_BATCHES = (1, 2, 4, 8, 16, 32)
GRID_TOKENS = (100, 250, 500, 1000, 1500, 2000)
"""What the paper profiled, as far as it holds its predictor valid [annealing, §5.1]."""


@dataclass(frozen=True, slots=True)
class Bilinear:
    """Seconds, bilinear in the size of a batch and a length: α, β, γ, δ in this order."""

    batch_token_s: float
    batch_s: float
    token_s: float
    fixed_s: float

    def at(self, batch: Amount, tokens: Amount) -> Amount:
        """Seconds for `batch` requests of `tokens` tokens."""
        of_tokens = self.batch_token_s * batch + self.token_s
        return of_tokens * tokens + self.batch_s * batch + self.fixed_s

    def scaled(self, scale: float) -> "Bilinear":
        """The same, all of it so many times as long."""
        return Bilinear(
            self.batch_token_s * scale, self.batch_s * scale, self.token_s * scale, self.fixed_s * scale
        )


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """The predictor. Batches are sizes, tokens lengths; numbers or arrays that broadcast."""

    prefill: Bilinear
    decode: Bilinear

    def prefill_s(self, batch: Amount, prompt_tokens: Amount) -> Amount:
        """Until the prompts are computed (eq. 14, 18)."""
        return self.prefill.at(batch, prompt_tokens)

    def decode_s(self, batch: Amount, prompt_tokens: Amount, decode_tokens: Amount) -> Amount:
        """From there to the last token (eq. 16)."""
        contexts = decode_tokens * prompt_tokens + decode_tokens * (decode_tokens + 1) / 2
        of_contexts = self.decode.batch_token_s * batch + self.decode.token_s
        return of_contexts * contexts + (self.decode.batch_s * batch + self.decode.fixed_s) * decode_tokens

    def scaled(self, scale: float) -> "BatchLatency":
        """The predictor of an engine that takes so many times as long for everything."""
        return BatchLatency(self.prefill.scaled(scale), self.decode.scaled(scale))


QWEN_7B_2XV100 = BatchLatency(
    Bilinear(0.1e-3, 5.7e-3, 0.01e-3, 43.67e-3), Bilinear(0.0002e-3, 0.275e-3, 0.00088e-3, 15.85e-3)
)
"""The paper's engine: Qwen2.5-7B on two V100 [annealing, Table 2]."""


class Profiled(NamedTuple):
    """A batch that was measured: `batch` requests alike, by lengths and the seconds of their two phases."""

    batch: int
    prompt_tokens: int
    decode_tokens: int
    prefill_s: float
    decode_s: float


class TooAlike(ValueError):
    """The profiled batches differ too little in size or length to tell the coefficients apart."""

    def __init__(self, samples: int) -> None:
        super().__init__(f"{samples} profiled batches do not span sizes and lengths; coefficients need both")


def fit_latency(samples: Sequence[Profiled]) -> BatchLatency:
    """The predictor with the least squared error over these batches. Raises TooAlike."""
    batch, prompt, decode, prefill_s, decode_s = np.array(samples, dtype=np.float64).reshape(-1, 5).T
    contexts = decode * prompt + decode * (decode + 1) / 2
    prefill = _least_squares((batch * prompt, batch, prompt, np.ones_like(batch)), prefill_s)
    return BatchLatency(
        prefill, _least_squares((batch * contexts, batch * decode, contexts, decode), decode_s)
    )


def latency_of(model: TimeModel) -> BatchLatency:
    """The predictor of an engine whose iterations this model tells."""
    return _at_scale_one(replace(model, scale=1.0)).scaled(model.scale)


@lru_cache(maxsize=64)
def _at_scale_one(model: TimeModel) -> BatchLatency:
    return fit_latency([_computed(model, batch, tokens) for batch in GRID_BATCHES for tokens in GRID_TOKENS])


def _computed(model: TimeModel, batch: int, tokens: int) -> Profiled:
    """A batch as the model tells it. Contexts grow evenly, so its mean decode is the one halfway."""
    prefill_s = model.seconds(BatchWork(batch * tokens, 0, batch * chunk_work(tokens, 0)))
    halfway = tokens + (tokens + 1) / 2
    token_s = model.seconds(BatchWork(batch, round(batch * halfway)))
    return Profiled(batch, tokens, tokens, prefill_s, token_s * tokens)


def _least_squares(columns: Sequence[Floats], seconds: Floats) -> Bilinear:
    """Columns differ by orders of magnitude, so each is brought to one first."""
    design = np.stack(columns, axis=1)
    size = np.abs(design).max(axis=0, initial=0.0)
    if not size.all() or np.linalg.matrix_rank(design / size) < len(columns):
        raise TooAlike(len(seconds))
    solved = np.linalg.lstsq(design / size, seconds, rcond=None)[0] / size
    return Bilinear(*solved.tolist())
