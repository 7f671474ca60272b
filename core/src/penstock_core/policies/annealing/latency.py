"""Latency of a batch of requests, from its first prompt token to the last token of each [annealing, §4.2].

The paper's latency predictor. A batch runs alone: its b prompts are prefilled together, then its answers are
decoded together. Prefill and one decode token are bilinear in the batch's size and a length (eq. 14 and 15),
and a whole answer is the sum over its tokens, which has a closed form (eq. 16):

    prefill(b, l_i)      = α_p·b·l_i + β_p·b + γ_p·l_i + δ_p
    token(b, l_a)        = α_d·b·l_a + β_d·b + γ_d·l_a + δ_d
    decode(b, l_i, l_o)  = Σ over k = 1..l_o of token(b, l_i + k)
                         = (α_d·b + γ_d)·(l_o·l_i + l_o·(l_o + 1)/2) + (β_d·b + δ_d)·l_o

The coefficients are the least-squares solution over profiled batches. If an engine has a time model of
iterations, its batches are computed instead of measured, on the paper's grid of sizes and of lengths below
2k, and fitted in the same way. The fit is made for the model at scale 1 and then scaled, prefill and
decode by their own kinds of iteration, so an online correction needs no new fit.

Lengths beyond the grid are extrapolated. An iteration model is not exactly bilinear, and a fit of squared
errors favours large batches.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import fsum, sqrt
from typing import NamedTuple, TypeVar

import numpy as np

from penstock_core.compilation.arrays import Floats
from penstock_core.timing.time_model import BatchWork, TimeModel, chunk_work

ALIKE = 1e-12
"""Smallest part of a column, relative to its length, that must be independent of the other columns."""

Amount = TypeVar("Amount", float, Floats)
"""A number or an array of numbers."""

GRID_BATCHES = (1, 2, 4, 8, 16, 32)
GRID_TOKENS = (100, 250, 500, 1000, 1500, 2000)
"""The paper's profiled sizes and lengths, as far as its predictor is valid [annealing, §5.1]."""


@dataclass(frozen=True, slots=True)
class Bilinear:
    """Seconds, bilinear in the size of a batch and a length: α, β, γ, δ in this order."""

    batch_token_s: float
    batch_s: float
    token_s: float
    fixed_s: float

    def at(self, batch: Amount, tokens: Amount) -> Amount:
        """Return the seconds for `batch` requests of `tokens` tokens."""
        of_tokens = self.batch_token_s * batch + self.token_s
        return of_tokens * tokens + self.batch_s * batch + self.fixed_s

    def scaled(self, scale: float) -> "Bilinear":
        """Return the same function with all durations multiplied by `scale`."""
        return Bilinear(
            self.batch_token_s * scale, self.batch_s * scale, self.token_s * scale, self.fixed_s * scale
        )


@dataclass(frozen=True, slots=True)
class BatchLatency:
    """The predictor. Arguments are batch sizes and lengths in tokens; numbers or arrays that broadcast."""

    prefill: Bilinear
    decode: Bilinear

    def prefill_s(self, batch: Amount, prompt_tokens: Amount) -> Amount:
        """Return the seconds until the prompts are computed (eq. 14, 18)."""
        return self.prefill.at(batch, prompt_tokens)

    def decode_s(self, batch: Amount, prompt_tokens: Amount, decode_tokens: Amount) -> Amount:
        """Return the seconds from there to the last token (eq. 16)."""
        contexts = decode_tokens * prompt_tokens + decode_tokens * (decode_tokens + 1) / 2
        of_contexts = self.decode.batch_token_s * batch + self.decode.token_s
        return of_contexts * contexts + (self.decode.batch_s * batch + self.decode.fixed_s) * decode_tokens

    def scaled(self, prefill: float, decode: float) -> "BatchLatency":
        """Return the predictor of an engine whose prefill and decodes take so many times as long."""
        return BatchLatency(self.prefill.scaled(prefill), self.decode.scaled(decode))


QWEN_7B_2XV100 = BatchLatency(
    Bilinear(0.1e-3, 5.7e-3, 0.01e-3, 43.67e-3), Bilinear(0.0002e-3, 0.275e-3, 0.00088e-3, 15.85e-3)
)
"""The paper's engine: Qwen2.5-7B on two V100 [annealing, Table 2]."""


class Profiled(NamedTuple):
    """A measured batch: `batch` equal requests, their lengths, and the seconds of the two phases."""

    batch: int
    prompt_tokens: int
    decode_tokens: int
    prefill_s: float
    decode_s: float


class SingularFit(ValueError):
    """The profiled batches vary too little in size or length to determine the coefficients."""

    def __init__(self, samples: int) -> None:
        super().__init__(f"{samples} profiled batches do not span sizes and lengths; coefficients need both")


def fit_latency(samples: Sequence[Profiled]) -> BatchLatency:
    """Return the predictor with the least squared error over these batches. Raises SingularFit."""
    batch, prompt, decode, prefill_s, decode_s = np.array(samples, dtype=np.float64).reshape(-1, 5).T
    contexts = decode * prompt + decode * (decode + 1) / 2
    prefill = _least_squares((batch * prompt, batch, prompt, np.ones_like(batch)), prefill_s)
    return BatchLatency(
        prefill, _least_squares((batch * contexts, batch * decode, contexts, decode), decode_s)
    )


def latency_of(model: TimeModel) -> BatchLatency:
    """Return the predictor of an engine with this model of iterations."""
    even = replace(model, scale=1.0, decode_scale=1.0, prefill_scale=1.0, mixed_scale=1.0)
    return _at_scale_one(even).scaled(model.scale * model.prefill_scale, model.scale * model.decode_scale)


@lru_cache(maxsize=64)
def _at_scale_one(model: TimeModel) -> BatchLatency:
    return fit_latency([_computed(model, batch, tokens) for batch in GRID_BATCHES for tokens in GRID_TOKENS])


def _computed(model: TimeModel, batch: int, tokens: int) -> Profiled:
    """Return a batch by the model. Contexts grow linearly, so the mean decode is the one halfway."""
    prefill_s = model.seconds(BatchWork(batch * tokens, 0, batch * chunk_work(tokens, 0)))
    halfway = tokens + (tokens + 1) / 2
    token_s = model.seconds(BatchWork(batch, round(batch * halfway)))
    return Profiled(batch, tokens, tokens, prefill_s, token_s * tokens)


def _least_squares(columns: Sequence[Floats], seconds: Floats) -> Bilinear:
    """Solve by orthogonal columns of length one [Gram and Schmidt, applied twice].

    Sums are exact, so that coefficients, and plans made of them, are the same on every machine: a BLAS adds
    in an order that depends on the processor. Raises SingularFit.
    """
    count = len(columns)
    lengths, basis = [0.0] * count, list[list[float]]()
    triangle = [[0.0] * count for _ in range(count)]
    for j, column in enumerate(columns):
        rest = column.tolist()
        lengths[j] = sqrt(_dot(rest, rest))
        rest = [value / (lengths[j] or 1.0) for value in rest]
        for i in [*range(j), *range(j)]:
            share = _dot(basis[i], rest)
            triangle[i][j] += share
            rest = [value - share * part for value, part in zip(rest, basis[i], strict=True)]
        triangle[j][j] = sqrt(_dot(rest, rest))
        if triangle[j][j] < ALIKE:
            raise SingularFit(len(seconds))
        basis.append([value / triangle[j][j] for value in rest])
    solved = [_dot(column, seconds.tolist()) for column in basis]
    for j in reversed(range(count)):
        solved[j] = (solved[j] - _dot(triangle[j][j + 1 :], solved[j + 1 :])) / triangle[j][j]
    return Bilinear(*[value / length for value, length in zip(solved, lengths, strict=True)])


def _dot(one: Sequence[float], other: Sequence[float]) -> float:
    return fsum([a * b for a, b in zip(one, other, strict=True)])
