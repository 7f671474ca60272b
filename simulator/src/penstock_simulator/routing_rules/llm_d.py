"""llm-d's scheduler with its default profile: a weighted sum of three scores, the highest first.

Prefix: cached share of the prompt. Queue: 1 for the replica with the fewest waiting requests, 0 for the one
with the most, linear between. KV cache: its free share. Weights are 3, 2 and 2.

Source: the scorers `prefix-cache-scorer`, `queue-scorer` and `kv-cache-utilization-scorer` of the Gateway API
Inference Extension. Operators that package llm-d document these weights (GPUStack for all three, OpenShift AI
3.4 for prefix 3 and queue 2).
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

PREFIX_WEIGHT, QUEUE_WEIGHT, KV_WEIGHT = 3.0, 2.0, 2.0


def llm_d(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Return the replicas by the weighted sum of their scores, the highest first."""
    queues = [load.snapshot.waiting + load.sent for load in loads]
    shortest, longest = min(queues, default=0), max(queues, default=0)

    def key(load: ReplicaLoad) -> tuple[float, ...]:
        spread = longest - shortest
        queue = (longest - load.snapshot.waiting - load.sent) / spread if spread else 1.0
        prefix = min(request.cached_at(load.name) / request.prompt_tokens, 1.0)
        return (-(PREFIX_WEIGHT * prefix + QUEUE_WEIGHT * queue + KV_WEIGHT * _free_share(load)),)

    return ranked(loads, request, key)


def _free_share(load: ReplicaLoad) -> float:
    snapshot = load.snapshot
    return snapshot.kv_tokens_free / snapshot.kv_tokens_total if snapshot.kv_tokens_total else 1.0
