"""How many tokens AccelGen puts into an iteration [AccelGen, §4.2, eq. 6].

The budget is what fits into the tightest time per token among the decodes, `S_b = S_pf · SLO_min / T_pf`;
with a time model that is its inverse at SLO_min. It is never more than the pivot forward size S_pf, where
throughput saturates: a longer batch is only a longer wait. By a time model throughput rises for ever towards
one token per slope of its steepest line, so the pivot is where it has come to most of that. The paper
measured 768 tokens for OPT-13B on an A100; four fifths give 812 by the model of that engine.

A time per token that the decodes alone exceed bounds nothing: cutting the prompts would not save it.
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
"""Time between two tokens for readers of a usual speed: of decodes that were promised none."""


class Budget(NamedTuple):
    """Bounds of the next iteration.

    tokens: S_b, decodes included. limit_s: SLO_min. longest_s: T_max, how long a batch that fills it takes.
    """

    tokens: int
    limit_s: float
    longest_s: float


def pivot_tokens(model: TimeModel) -> int:
    """S_pf: fewest tokens that come to `SATURATED` of the highest throughput, attention aside."""
    steepest_s = max(term.token_s for term in model.terms)
    if steepest_s <= 0:
        return UNBOUNDED_TOKENS
    needed = [
        SATURATED * (term.fixed_s + model.overhead_s) / (steepest_s - SATURATED * term.token_s)
        for term in model.terms
    ]
    return max(ceil(max(needed) - 1e-9), 1)  # sums of floats


def tbt_s(job: Job, reading_s: float) -> float:
    """Time between two tokens that a decode is held to."""
    return reading_s if job.pace_s is None else job.pace_s


def budget(view: ReplicaView, decodes: Sequence[Job], reading_s: float) -> Budget:
    """S_b for these decodes."""
    context = sum([job.computed_tokens for job in decodes]) + len(decodes)
    decodes_s = view.model.seconds(BatchWork(len(decodes), context))
    limit_s = min([pace_s for job in decodes if (pace_s := tbt_s(job, reading_s)) > decodes_s], default=inf)
    most = min(pivot_tokens(view.model), view.limits.batch_tokens)
    tokens = min(view.model.tokens_within(limit_s, context), most)
    return Budget(tokens, limit_s, view.model.seconds(BatchWork(max(tokens, len(decodes), 1), context)))
