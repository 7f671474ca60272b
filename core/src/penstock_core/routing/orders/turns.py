"""Round-robin among equal replicas, which makes every order total."""

from collections.abc import Callable, Sequence

from penstock_core.routing.replica_load import Asked, ReplicaLoad

Key = Callable[[ReplicaLoad], tuple[float, ...]]


def in_turn(loads: Sequence[ReplicaLoad], asked: Asked) -> list[ReplicaLoad]:
    """Return all replicas by name, starting at this request's turn."""
    by_name = sorted(loads, key=lambda load: load.name)
    start = asked.turn % len(by_name) if by_name else 0
    return by_name[start:] + by_name[:start]


def ranked(loads: Sequence[ReplicaLoad], asked: Asked, key: Key) -> tuple[str, ...]:
    """Return names by ascending key; replicas with equal keys take turns."""
    return tuple([load.name for load in sorted(in_turn(loads, asked), key=key)])
