"""A change of what pods read rolls them, one at a time, and only those that read it."""

from typing import Any

from story.pool import NAME, NAMESPACE, REPLICAS
from story.waiting import until
from story.world import World, settled


def engine(world: World) -> None:
    """The engines roll to another policy, with never more than one replica away."""
    routers, fewest = world.pod_names("router"), REPLICAS
    old = _uids(world, "replica")
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"scheduling": {"policy": "sarathi"}}})

    def rolled() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(map(_ready, world.pods("replica"))))
        return settled(world.pool(), REPLICAS) and not old & _uids(world, "replica")

    until(rolled, "all replicas rolled")
    assert fewest >= REPLICAS - 1, f"{fewest} of {REPLICAS} replicas were ready meanwhile"
    assert world.pool()["status"]["policy"] == "sarathi"
    assert world.pod_names("router") == routers, "the routers rolled too"


def router(world: World) -> None:
    """The routers roll to another order, and no replica does."""
    replicas, old = _uids(world, "replica"), _uids(world, "router")
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"router": {"maxHeaderBytes": 32768}}})
    until(lambda: settled(world.pool(), REPLICAS) and not old & _uids(world, "router"), "all routers rolled")
    assert _uids(world, "replica") == replicas, "replicas rolled too"


def _uids(world: World, component: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in world.pods(component)}


def _ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
