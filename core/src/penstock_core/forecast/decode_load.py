"""What running decodes leave of the engine, and how long a prefill takes beside them.

While decodes run, the engine works in periods: one batch each, no longer than the tightest pace among
them, every decode with its token in it. What a batch has left is prefill [SLOs-Serve, §3.2.2, PB*]. Here
that is a rate: in a period of T seconds of which decodes, attention and the fixed cost take x, prefill
advances by T − x, so work of w seconds takes w · T / (T − x). It is kept per line of the time model's
roofline, since a batch must satisfy them all; the slowest counts.

A batch is also no longer than `longest_s`: the batch under way cannot be interrupted, so its length is
what an arrival waits. Longer batches waste less on their fixed cost, so it grows with what decodes
themselves take: twice that (and one short chunk's attention) leaves half of every batch to prefill.

Decodes of looser tiers need not be in every batch: at a pace of `every` periods a class of n needs ⌈n /
every⌉ tokens a period. Only where memory is no concern: a decode that waits holds its blocks longer.

The rate is a lower bound for every batch of at least T seconds, whatever the engine then chooses, because
- it charges one token a batch that rounding may leave unused, and one short chunk of attention;
- with a fixed cost above zero longer batches have a higher rate; below zero (a roofline fitted to large
  batches can have one) the rate is taken as if the fixed cost were none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Bools, Floats, Ints
from penstock_core.timing.batch_length import DECODE_STRETCH, ORDINARY_BATCH_S
from penstock_core.timing.time_model import SHORTEST_CHUNK_TOKENS, TimeModel, chunk_work, line_seconds


@dataclass(frozen=True, slots=True)
class Pacing:
    """How long a batch may be where no token is due earlier.

    floor_s: always allowed. stretch: or this many times what its decodes alone take.
    """

    floor_s: float = ORDINARY_BATCH_S
    stretch: float = DECODE_STRETCH


@dataclass(frozen=True, slots=True)
class Load:
    """Everything about the running set that a rate depends on, beside how many decode.

    context_tokens: summed over decodes, at most, over the time planned for.
    longest_prompt_tokens: among prefills, for the attention of one short chunk.
    """

    context_tokens: int
    longest_prompt_tokens: int
    batch_tokens: int


class Rate(NamedTuple):
    """Period and prefill rate beside one set of decodes: an element of `Rates`."""

    period_s: float
    per_second: tuple[float, ...]
    per_token: float

    def prefill_s(self, lines_s: Sequence[float], tokens: int) -> float:
        """How long a prefill takes at this rate; infinite where decodes leave nothing."""
        slowest_s = self.per_token * tokens
        for per_second, line_s in zip(self.per_second, lines_s, strict=True):
            slowest_s = max(slowest_s, per_second * line_s)
        return slowest_s


class Rates(NamedTuple):
    """Periods and prefill rates for many sets of decodes at once, one element each.

    period_s: T. fits: whether the decodes fit into it.
    per_second: seconds taken by one second of prefill work, for each line of the roofline.
    per_token: seconds taken by one token, where the engine's own token bound is what limits.
    """

    period_s: Floats
    fits: Bools
    per_second: tuple[Floats, ...]
    per_token: Floats

    def first(self, count: int) -> "Rates":
        """The first elements alone."""
        return self.of(slice(count))

    def of(self, chosen: Ints | slice) -> "Rates":
        """Some of the elements."""
        per_second = tuple([line[chosen] for line in self.per_second])
        return Rates(self.period_s[chosen], self.fits[chosen], per_second, self.per_token[chosen])

    def beside(self, i: int) -> Rate:
        """One of the elements."""
        per_second = tuple([float(line[i]) for line in self.per_second])
        return Rate(float(self.period_s[i]), per_second, float(self.per_token[i]))

    def best(self) -> Rate:
        """The shortest period and the highest rates of all, of whichever elements."""
        per_second = tuple([float(line.min()) for line in self.per_second])
        return Rate(float(self.period_s.min()), per_second, float(self.per_token.min()))


def rates(
    model: TimeModel, pacing: Pacing, load: Load, decode_tokens: Floats, tightest_pace_s: Floats
) -> Rates:
    """Rates beside `decode_tokens` a period, the tightest of whose paces is given (infinite for none)."""
    attention_s = model.context_token_s * load.context_tokens
    alone = [
        model.scale * (line_seconds(t, np.maximum(decode_tokens, 1), 0) + attention_s + model.overhead_s)
        for t in model.terms
    ]
    decodes_s = np.maximum.reduce(alone)
    reserve_s = _short_chunk_s(model, load.longest_prompt_tokens)
    longest_s = np.maximum(pacing.floor_s, pacing.stretch * (decodes_s + model.scale * reserve_s))
    period_s = np.minimum(tightest_pace_s, longest_s)
    left = [
        np.minimum(period_s / model.scale, (period_s - taken_s) / model.scale - t.token_s - reserve_s)
        for t, taken_s in zip(model.terms, alone, strict=True)
    ]
    return Rates(
        period_s,
        (decodes_s <= period_s) & (decode_tokens <= load.batch_tokens),
        tuple(_per_unit(period_s, left_s) for left_s in left),
        _per_unit(period_s, load.batch_tokens - decode_tokens),
    )


def _short_chunk_s(model: TimeModel, prompt_tokens: int) -> float:
    """Unscaled attention time that cutting one prompt in two adds at most: the rest may be a short chunk."""
    return model.prefill_work_s * chunk_work(SHORTEST_CHUNK_TOKENS, prompt_tokens)


def work_s(model: TimeModel, tokens: int, prefill_work: float) -> tuple[float, ...]:
    """Unscaled seconds of a prefill on each line of the roofline."""
    attention_s = model.prefill_work_s * prefill_work
    return tuple([t.token_s * tokens + attention_s for t in model.terms])


def prefill_s(at: Rates, lines_s: Sequence[float], tokens: int) -> Floats:
    """How long a prefill takes at these rates; infinite where decodes leave nothing."""
    slowest = at.per_token * tokens
    for per_second, line_s in zip(at.per_second, lines_s, strict=True):
        slowest = np.maximum(slowest, per_second * line_s)
    return slowest


def _per_unit(period_s: Floats, left: Floats) -> Floats:
    return np.divide(period_s, left, out=np.full_like(period_s, np.inf), where=left > 0)
