"""**lmetric.** Orders by prompt tokens before the first token times requests at the replica [LMetric,
arXiv:2603.15202].

A product instead of a weighted sum: the prompt tokens to compute before this request's first token represent
its TTFT, the batch size its TPOT. A product needs no weights.

Choose it for engines whose snapshots have only counts, without a planner's forecast. Tokens of the prompt
that a replica has cached are not computed there, so the product also weighs prefixes against load.

Costs: an idle batch makes the product zero, however long a prompt has just been sent there, and a replica
with twice the batch counts as twice as bad although its steps are hardly longer. It does not use deadlines.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest


def lmetric(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by queued and new prefill tokens times batch size; by these tokens if no request runs."""
    return ranked(loads, request, lambda load: _score(load, request.uncached_tokens(load.name)))


def _score(load: ReplicaLoad, uncached_tokens: int) -> tuple[float, ...]:
    before_first_token = load.prefill_tokens_left + uncached_tokens
    return before_first_token * load.batch, before_first_token
