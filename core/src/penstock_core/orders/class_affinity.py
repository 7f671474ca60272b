"""**class-affinity.** Each tier has replicas of its own choice, and spills over to others when they are full."""

from collections.abc import Sequence
from hashlib import blake2b

from penstock_core.orders.turns import ranked
from penstock_core.replica_load import Asked, ReplicaLoad

CROWDED = 1.25
"""A replica with this many times the mean of the work is no first choice."""


def class_affinity(loads: Sequence[ReplicaLoad], asked: Asked) -> tuple[str, ...]:
    """The tier's own replicas first, as far as they are not crowded; then the others by their work."""
    if not loads:
        return ()
    bound_s = CROWDED * sum(load.work_s for load in loads) / len(loads)
    return ranked(loads, asked, lambda load: _key(load, asked.tier, bound_s))


def _key(load: ReplicaLoad, tier: str, bound_s: float) -> tuple[float, ...]:
    if load.work_s > bound_s:
        return True, load.work_s
    return False, -_liking(tier, load.name)


def _liking(tier: str, name: str) -> float:
    """How much a tier likes a replica: drawn once and for all, alike in every router."""
    digest = blake2b(f"{tier}\0{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64
