"""Taking turns: what keeps equal replicas equally used, and every order total."""

from collections.abc import Callable, Sequence

from penstock_core.routing.replica_load import Asked, ReplicaLoad

Key = Callable[[ReplicaLoad], tuple[float, ...]]


def in_turn(loads: Sequence[ReplicaLoad], asked: Asked) -> list[ReplicaLoad]:
    """Everyone by name, from where it is this request's turn to start."""
    by_name = sorted(loads, key=lambda load: load.name)
    start = asked.turn % len(by_name) if by_name else 0
    return by_name[start:] + by_name[:start]


def ranked(loads: Sequence[ReplicaLoad], asked: Asked, key: Key) -> tuple[str, ...]:
    """Names by ascending key; those that are equal take turns."""
    return tuple([load.name for load in sorted(in_turn(loads, asked), key=key)])
