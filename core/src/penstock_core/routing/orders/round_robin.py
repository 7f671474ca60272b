"""**round-robin.** Everyone in turn, whatever they say of themselves [SLOs-Serve, §4.2].

Choose it where replicas are many and requests alike, or as the measure of the others: it needs nothing to be
known, so nothing can be wrong. Rejections do the balancing: a request that comes to a full replica walks on.

Costs: a hop for every full replica before one with room, and with a hop limit below the number of replicas
some requests never meet the one that had it. It sees neither bursts nor long prompts.
"""

from collections.abc import Sequence

from penstock_core.routing.orders.turns import in_turn
from penstock_core.routing.replica_load import Asked, ReplicaLoad


def round_robin(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """Everyone in turn, by name; the next request starts one further."""
    return tuple([load.name for load in in_turn(loads, asked)])
