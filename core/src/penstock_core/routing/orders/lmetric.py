"""**lmetric.** Prompt tokens before its first token times requests there, the least first [LMetric, 2026].

One product in place of a weighted sum: the prompt tokens to be computed until this request's first token
stand for its wait, the batch for how slowly its answer will go. Multiplied, neither needs a weight.

Choose it in front of engines whose snapshots carry counts only, without a planner to forecast. Without prefix
caches every replica has the whole prompt to compute, so what differs is the queue.

Costs: an idle batch makes the product nothing, however long a prompt has just been sent there, and a replica
with twice the batch counts as twice as bad though its steps are hardly longer. It knows no deadline.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import Asked, ReplicaLoad


def lmetric(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """By queued and new prefill tokens times batch size; the shorter queue where nobody runs."""
    return ranked(loads, asked, lambda load: _score(load, asked.prompt_tokens))


def _score(load: ReplicaLoad, prompt_tokens: int) -> tuple[float, ...]:
    queued = load.prefill_tokens_left
    return (queued + prompt_tokens) * load.batch, queued
