"""Draining a node evicts its pods; the pool's disruption budget limits how many at a time."""

import json

from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.world import World


def against_the_budget(world: World) -> None:
    """One replica is evicted, a second eviction at the same time is refused, and the pool recovers."""
    first, second, *_ = world.pod_names("replica")
    _evict(world, first)
    output = world.tools.refused(*_command(second), stdin=_eviction(second))
    assert "disruption budget" in output, output
    world.settled(REPLICAS)
    router, other, *_ = world.pod_names("router")
    _evict(world, router)
    output = world.tools.refused(*_command(other), stdin=_eviction(other))
    assert "disruption budget" in output, output
    world.settled(REPLICAS)


def _evict(world: World, pod: str) -> None:
    world.tools.kubectl(*_command(pod), stdin=_eviction(pod))


def _command(pod: str) -> list[str]:
    return ["create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "--filename=-"]


def _eviction(pod: str) -> str:
    metadata = {"name": pod, "namespace": NAMESPACE}
    return json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
