"""Prefill of an iteration: SOLA's order and its two workloads [SOLA, §4.4.2–4.4.3].

Prompts are in descending order of predicted TTFT, `TTFT_r + C_p(r)`, over their own targets, so one tier's 3
of 4 seconds come before another's 5 of 20. A preempted request is ordered by its predicted TPOT.

To minimise TTFT, prefill goes first and is bounded by tokens: the most, in whole tiles of the GPU, with which
every decode still gets its next token in time (eq. 1; `TPOT_r + C_p/l_out_r ≤ T` is `C_p ≤ due_r − now`). To
minimise TPOT, decodes go first and prefill is bounded by requests: the fewest with which every remaining
prompt is still in time if it runs in the next iteration (eq. 2).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from penstock_core.compilation.arrays import Floats, Ints
from penstock_core.domain.request import Job
from penstock_core.policies.sola.cost import Costs
from penstock_core.policies.sola.monitor import LEAST_S, since_s
from penstock_core.timing.time_model import BatchWork, chunk_works

TILE_TOKENS = 128
"""Tile of matrix products: on an A100 a part of a tile takes as long as all of it [§4.4.3]."""


class PromptQueue(NamedTuple):
    """Prompts to compute, most urgent first. Columns have one element per prompt.

    tokens, done, work: pending and computed tokens, attention of the pending ones (`chunk_work`).
    slack_s: how much later each may start and still be in time, prefilled alone; infinite if it does not
        count.
    """

    jobs: Sequence[Job]
    tokens: Ints
    done: Ints
    work: Floats
    slack_s: Floats

    def of(self, places: Sequence[int]) -> "PromptQueue":
        """Return some of the prompts, in this order."""
        chosen = np.asarray(places, np.int64)
        tokens, done, work, slack_s = (self.tokens, self.done, self.work, self.slack_s)
        return PromptQueue(
            [self.jobs[i] for i in places], tokens[chosen], done[chosen], work[chosen], slack_s[chosen]
        )


def in_order(
    jobs: Sequence[Job], now_s: float, costs: Costs, *, loosened: bool = False, patience: float = 1.0
) -> PromptQueue:
    """Return prompts by descending predicted TTFT over target. If loosened, late ones do not count."""
    count = len(jobs)
    tokens = np.fromiter([job.pending_tokens for job in jobs], np.int64, count)
    done = np.fromiter([job.computed_tokens for job in jobs], np.int64, count)
    due_s = np.fromiter([job.due_s for job in jobs], np.float64, count)
    start_s = np.fromiter([since_s(job) for job in jobs], np.float64, count)
    work = chunk_works(tokens, done)
    out_s = now_s + costs.prefill_s(tokens, work)
    target_s = np.maximum(due_s - start_s, LEAST_S)
    slack_s = np.where((due_s < now_s) & loosened, np.inf, start_s + patience * target_s - out_s)
    ratio = (out_s - start_s) / target_s
    return PromptQueue(jobs, tokens, done, work, slack_s).of(np.argsort(-ratio, kind="stable").tolist())


def most_tokens(prompts: PromptQueue, costs: Costs, limit_s: float, bound_tokens: int) -> int:
    """Return k: the largest multiple of a tile, within a bound, whose prefill takes at most `limit_s` [eq.
    1].

    Tokens beyond all prompts count as prompt tokens; decodes use them. A bound below a tile counts as a tile.
    """
    tile = min(TILE_TOKENS, bound_tokens)
    sizes: Ints = np.arange(1, bound_tokens // tile + 1) * tile
    fits = costs.prefill_s(sizes, _work_of_first(prompts, sizes)) <= limit_s
    return int(sizes[fits][-1]) if fits.any() else 0


def _work_of_first(prompts: PromptQueue, sizes: Ints) -> Floats:
    """Return the attention of the first tokens of the prompts, for every size."""
    ends = np.concatenate(([0], np.cumsum(prompts.tokens)))
    works = np.concatenate(([0.0], np.cumsum(prompts.work)))
    whole = np.searchsorted(ends, sizes, side="right") - 1
    rest = sizes - ends[whole]
    done = np.append(prompts.done, 0)[whole]
    cut = (whole < len(prompts.tokens)) & (rest > 0)
    return np.where(cut, works[whole] + chunk_works(rest, done), works[whole])


def fewest_prompts(prompts: PromptQueue, costs: Costs, decodes: BatchWork) -> int:
    """Return n: fewest prompts, from the first, beside these decodes, so the rest can wait [eq. 2]."""
    others_s = np.append(np.minimum.accumulate(prompts.slack_s[::-1])[::-1], np.inf)
    batches_s = costs.mixed_s(np.cumsum(prompts.tokens), np.cumsum(prompts.work), decodes)
    takes_s = np.concatenate(([costs.decode_s(decodes)], batches_s))
    return int(np.argmax(others_s >= takes_s))
