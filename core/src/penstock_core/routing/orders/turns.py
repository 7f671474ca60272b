"""Round-robin among equal replicas, which makes every order total.

A router compares at most `MOST_COMPARED` replicas for a request, so that a request costs the same in a pool
of any size. In a larger pool each request compares those that have their turn, and the others follow in turn.
The best of a few random replicas is nearly as good as the best of all [Mitzenmacher, The Power of Two Choices
in Randomized Load Balancing, 2001].
"""

from collections.abc import Callable, Sequence
from operator import attrgetter

from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest

MOST_COMPARED = 64
"""Far more than the two to five that suffice, and all replicas of most pools."""

Key = Callable[[ReplicaLoad], tuple[float, ...]]

_name = attrgetter("name")


def in_turn(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> list[ReplicaLoad]:
    """Return all replicas by name, each request starting at the next one."""
    by_name = sorted(loads, key=_name)
    start = request.number % len(by_name) if by_name else 0
    return by_name[start:] + by_name[:start]


def ranked(loads: Sequence[ReplicaLoad], request: RoutingRequest, key: Key) -> tuple[str, ...]:
    """Return names by ascending key, the rest in turn; replicas with equal keys take turns."""
    turns = in_turn(loads, request)
    turns[:MOST_COMPARED] = sorted(turns[:MOST_COMPARED], key=key)
    return tuple([load.name for load in turns])
