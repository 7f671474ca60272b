"""**lmetric.** Orders by prompt tokens before the first token times requests at the replica [LMetric, 2026].

A product instead of a weighted sum: the prompt tokens to compute before this request's first token represent
its TTFT, the batch size its TPOT. A product needs no weights.

Choose it for engines whose snapshots have only counts, without a planner's forecast. Without prefix caches
every replica has to compute the whole prompt, so only the queue differs.

Costs: an idle batch makes the product zero, however long a prompt has just been sent there, and a replica
with twice the batch counts as twice as bad although its steps are hardly longer. It does not use deadlines.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import Asked, ReplicaLoad


def lmetric(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """Order by queued and new prefill tokens times batch size; by the queue if nothing runs."""
    tokens = asked.prompt_tokens
    return ranked(loads, asked, lambda load: _score(load, tokens))


def _score(load: ReplicaLoad, prompt_tokens: int) -> tuple[float, ...]:
    queued = load.prefill_tokens_left
    return (queued + prompt_tokens) * load.batch, queued
