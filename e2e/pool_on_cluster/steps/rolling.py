"""A change rolls the pods that read it, one at a time, and no others."""

from collections.abc import Mapping
from typing import Any

from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World, settled

KV_TOKENS = 20_000


def engine(world: World) -> None:
    """The engines roll to another KV cache size, with at most one replica unavailable."""
    routers = _uids(world, "router")
    _roll_replicas(world, {"engine": {"kvCacheTokens": KV_TOKENS}})
    assert _uids(world, "router") == routers, "the routers rolled too"


def policy(world: World) -> None:
    """The pool rolls to another policy, with at most one replica unavailable."""
    _roll_replicas(world, {"scheduling": {"policy": "sarathi"}})
    assert world.pool()["status"]["policy"] == "sarathi"


def _roll_replicas(world: World, spec: Mapping[str, Any]) -> None:
    old, fewest = _uids(world, "replica"), REPLICAS
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(map(_ready, world.pods("replica"))))
        return settled(world.pool(), REPLICAS) and not old & _uids(world, "replica")

    until(rolled, "all replicas rolled")
    assert fewest >= REPLICAS - 1, f"{fewest} of {REPLICAS} replicas were ready meanwhile"


def router(world: World) -> None:
    """The routers roll, and no replica does."""
    replicas, old = _uids(world, "replica"), _uids(world, "router")
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"router": {"maxInflight": 2048}}})
    until(lambda: settled(world.pool(), REPLICAS) and not old & _uids(world, "router"), "all routers rolled")
    assert _uids(world, "replica") == replicas, "replicas rolled too"


def _uids(world: World, component: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(component)}


def _ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
