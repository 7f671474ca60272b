"""**prefix.** First the replicas that hold the longest cached prefix of the prompt, then by load.

A replica with the prefix computes only the rest of the prompt, so it can admit a request that no other can.
It decides itself whether its load allows that: if it rejects, the next replica is tried, computes the prefix,
and holds it from then on. So a hot prefix spreads to as many replicas as it needs, and the order needs no
weights between affinity and load.

If no replica is known to hold a prefix of the prompt, requests with the same `affinity` go to the same
replicas, by rendezvous hashing [Thaler and Ravishankar, 1998]: every router computes the same order, and if a
replica is added or removed, only the requests that go to it, or went to it, change their replica.

Choose it for sessions, agents and long common system prompts, with a policy that rejects and with as many
hops as replicas.

Costs: one hop for every holder that rejects. A policy that rejects no request queues all requests of a hot
prefix at one replica; `best-fit` and `lmetric` weigh the queue against the prefill that is saved. Hashing
ignores load.
"""

from collections.abc import Sequence
from hashlib import blake2b

from penstock_core.routing.orders.least_loaded import least_loaded
from penstock_core.routing.orders.turns import in_turn
from penstock_core.routing.replica_load import ReplicaLoad, RoutingRequest


def prefix(loads: Sequence[ReplicaLoad], request: RoutingRequest) -> tuple[str, ...]:
    """Order by expected cached tokens, then by affinity if there is any, else as `least-loaded`.

    Holders are compared in a pool of any size.
    """
    holders = [load for load in in_turn(loads, request) if request.cached_at(load.name)]
    holders.sort(key=lambda load: _key(load, request))
    others = [load for load in loads if not request.cached_at(load.name)]
    rest = least_loaded(others, request) if request.affinity is None else _hashed(others, request.affinity)
    return (*[load.name for load in holders], *rest)


def _hashed(loads: Sequence[ReplicaLoad], affinity: bytes) -> tuple[str, ...]:
    """Order by rendezvous hashing."""
    return tuple(sorted([load.name for load in loads], key=lambda name: _weight(affinity, name)))


def _weight(affinity: bytes, name: str) -> tuple[bytes, str]:
    return blake2b(name.encode() + b"\0" + affinity, digest_size=8).digest(), name


def _key(load: ReplicaLoad, request: RoutingRequest) -> tuple[float, ...]:
    cached, uncached = request.cached_at(load.name), request.uncached_tokens(load.name)
    return -cached, load.done_s(uncached, request.now_s)
