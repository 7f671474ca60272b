"""Token budget of an AccelGen iteration [AccelGen, §4.2, eq. 6].

The budget is what fits into the smallest time per token among the decodes, `S_b = S_pf · SLO_min / T_pf`;
with a time model that is its inverse at SLO_min. It is at most the pivot forward size S_pf, where throughput
saturates, because a longer batch only makes others wait longer. By a time model throughput always rises
towards one token per slope of its steepest line, so the pivot is defined as a fixed share of that limit. The
paper measured 768 tokens for OPT-13B on an A100; four fifths give 812 by the model of that engine.

A time per token that the decodes alone exceed is ignored, because cutting the prompts would not meet it.
"""

from collections.abc import Sequence
from math import ceil, inf
from typing import NamedTuple

from penstock_core.domain.replica_view import ReplicaView
from penstock_core.domain.request import Job
from penstock_core.timing.time_model import UNBOUNDED_TOKENS, BatchWork, TimeModel

SATURATED = 0.8
"""Share of the highest throughput at which a batch counts as saturating."""

READING_TBT_S = 0.1875
"""Time between two tokens at a usual reading speed, for decodes without a target."""


class Budget(NamedTuple):
    """Bounds of the next iteration.

    tokens: S_b, decodes included. limit_s: SLO_min. longest_s: T_max, duration of a batch that fills it.
    """

    tokens: int
    limit_s: float
    longest_s: float


def pivot_tokens(model: TimeModel) -> int:
    """Return S_pf: fewest tokens that reach `SATURATED` of the highest throughput, ignoring attention."""
    steepest_s = max(term.token_s for term in model.terms)
    if steepest_s <= 0:
        return UNBOUNDED_TOKENS
    needed = [
        SATURATED * (term.fixed_s + model.overhead_s) / (steepest_s - SATURATED * term.token_s)
        for term in model.terms
    ]
    return max(ceil(max(needed) - 1e-9), 1)  # rounding error of sums


def tbt_s(job: Job, reading_s: float) -> float:
    """Return the target time between two tokens of a decode."""
    return reading_s if job.tpot_s is None else job.tpot_s


def budget(view: ReplicaView, decodes: Sequence[Job], reading_s: float) -> Budget:
    """Return S_b for these decodes."""
    context = sum([job.computed_tokens for job in decodes]) + len(decodes)
    decodes_s = view.model.seconds(BatchWork(len(decodes), context))
    limit_s = min([tpot_s for job in decodes if (tpot_s := tbt_s(job, reading_s)) > decodes_s], default=inf)
    most = min(pivot_tokens(view.model), view.limits.batch_tokens)
    tokens = min(view.model.tokens_within(limit_s, context), most)
    return Budget(tokens, limit_s, view.model.seconds(BatchWork(max(tokens, len(decodes), 1), context)))
