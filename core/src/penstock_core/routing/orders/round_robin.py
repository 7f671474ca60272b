"""**round-robin.** All replicas in turn, whatever their load [SLOs-Serve, §4.2].

Choose it for many replicas and similar requests, or as the baseline: it needs no information, so none can be
wrong. Rejections balance load: a request that is rejected by a full replica goes to the next one.

Costs: one hop for every full replica before one with capacity, and with a hop limit below the number of
replicas some requests never reach it. It considers neither bursts nor long prompts.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import in_turn
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest


def round_robin(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by name; each request starts one replica further."""
    return tuple([load.name for load in in_turn(loads, request)])
