"""SGLang's cache-aware policy with its defaults: affinity while loads are balanced, else the least loaded.

A replica's load is its number of requests. Loads are out of balance if the largest exceeds the smallest by
more than 64 and by more than half. While they are balanced, the replica with the longest cached prefix is
first if it has more than 0.3 of the prompt. Otherwise SGLang chooses the replica that has cached least; here
it is the one with the most free memory.

Source: SGLang's model gateway (now SMG), policy `cache_aware` and its documentation "Cache-Aware Routing":
--cache-threshold 0.3, --balance-abs-threshold 64, --balance-rel-threshold 1.5; both thresholds have to be
exceeded.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import ranked
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

CACHE_THRESHOLD = 0.3
BALANCE_REQUESTS = 64
BALANCE_RATIO = 1.5


def sglang(
    loads: Sequence[ReplicaLoad], request: RoutingRequest, balance_requests: int = BALANCE_REQUESTS
) -> tuple[str, ...]:
    """Return the replicas by load if it is out of balance, else by cached prefix or free memory."""
    if _out_of_balance([load.batch for load in loads], balance_requests):
        return ranked(loads, request, lambda load: (load.batch,))
    longest = max((request.cached_at(load.name) for load in loads), default=0)
    if longest > CACHE_THRESHOLD * request.prompt_tokens:
        return ranked(loads, request, lambda load: (-request.cached_at(load.name),))
    return ranked(loads, request, lambda load: (-load.snapshot.kv_tokens_free,))


def _out_of_balance(batches: Sequence[int], balance_requests: int) -> bool:
    fewest, most = min(batches, default=0), max(batches, default=0)
    return most - fewest > balance_requests and most > BALANCE_RATIO * fewest
