"""Dynamo's KV router with its defaults: the lowest sum of prefill and decode cost first.

Prefill cost: prompt tokens to compute at the replica, including this request's tokens that are not cached.
Decode cost: tokens in the KV memory of its requests. Both are in blocks there; the unit does not change the
order, nor do the new request's own blocks, because they are the same at each replica. The overlap weight is
1, the temperature 0.

Source: NVIDIA Dynamo documentation, "Routing Concepts" (v1.2), cost calculation: overlap_score_weight ·
prefill_blocks + decode_blocks; and its `DefaultWorkerSelector`, where prefill blocks are those in progress at
the worker and those of the new request that do not overlap.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

OVERLAP_WEIGHT = 1.0


def dynamo(
    loads: Sequence[ReplicaLoad], request: RoutingRequest, overlap_weight: float = OVERLAP_WEIGHT
) -> tuple[str, ...]:
    """Return the replicas by cost, the lowest first."""
    return ranked(loads, request, lambda load: (_cost_tokens(load, request, overlap_weight),))


def _cost_tokens(load: ReplicaLoad, request: RoutingRequest, overlap_weight: float) -> float:
    prefill = load.prefill_tokens_left + request.uncached_tokens(load.name)
    decode = load.snapshot.kv_tokens_total - load.snapshot.kv_tokens_free
    return overlap_weight * prefill + decode
