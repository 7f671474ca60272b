"""kill -9 of one process of a pool.

Streams of a killed engine or sidecar move to another replica; a router's own requests end with it. A request
of the killed process that is lost is counted as such; any other lost request fails the step.
"""

from time import time
from typing import Any

from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World


def engine(world: World) -> None:
    """An engine is killed; its streams move to another replica, and no others are lost."""
    _kill_in_a_replica(world, "engine")


def sidecar(world: World) -> None:
    """A sidecar is killed; its streams move to another replica, and no others are lost."""
    _kill_in_a_replica(world, "sidecar")


def router(world: World) -> None:
    """A router is killed; its open requests are lost, and no later ones."""
    killed_s = kill(world, world.pods("router")[0], "router")
    world.traffic.excuse(lambda requested: requested.began_s <= killed_s)
    world.settled(REPLICAS)


def _kill_in_a_replica(world: World, container: str) -> None:
    pod = world.pods("replica")[1]
    name = pod["metadata"]["name"]
    killed_s = kill(world, pod, container)
    world.traffic.excuse(lambda requested: requested.replica == name and requested.began_s <= killed_s)
    world.settled(REPLICAS)


def kill(world: World, pod: Any, container: str) -> float:
    """Kill the process and wait until Kubernetes has restarted it. Returns the time of the kill."""
    name = pod["metadata"]["name"]
    before = restarts(pod, container)
    world.node.kill(name, container, NAMESPACE)
    killed_s = time()
    until(
        lambda: restarts(world.tools.get("pod", name, "--namespace", NAMESPACE), container) > before,
        f"{container} of {name} started again",
    )
    return killed_s


def restarts(pod: Any, container: str) -> int:
    """Return how often a container of a pod was started again."""
    status = pod["status"]
    of_all = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return sum(one["restartCount"] for one in of_all if one["name"] == container)
