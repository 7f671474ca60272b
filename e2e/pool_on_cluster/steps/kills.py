"""One process of a pool is killed with SIGKILL.

Streams of a killed engine or sidecar move to another replica; requests of a killed router are lost. Lost
requests of the killed process are counted; any other lost request fails the step.
"""

from time import time
from typing import Any

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until


def engine(context: ClusterContext) -> None:
    """An engine is killed; its streams move to another replica, and no others are lost."""
    _kill_in_replica(context, "engine")


def sidecar(context: ClusterContext) -> None:
    """A sidecar is killed; its streams move to another replica, and no others are lost."""
    _kill_in_replica(context, "sidecar")


def router(context: ClusterContext) -> None:
    """A router is killed; its open requests are lost, and no later ones."""
    killed_s = kill(context, context.pods("router")[0], "router")
    context.traffic.allow_losses(lambda request: request.started_s <= killed_s)
    context.wait_reconciled(REPLICAS)


def _kill_in_replica(context: ClusterContext, container: str) -> None:
    pod = context.pods("replica")[1]
    name = pod["metadata"]["name"]
    killed_s = kill(context, pod, container)
    context.traffic.allow_losses(lambda request: request.replica == name and request.started_s <= killed_s)
    context.wait_reconciled(REPLICAS)


def kill(context: ClusterContext, pod: Any, container: str) -> float:
    """Kill the process and wait until Kubernetes has restarted it. Returns the time of the kill."""
    context.local_cluster.kill(pod["metadata"]["name"], container, NAMESPACE)
    killed_s = time()
    wait_restarted(context, pod, container)
    return killed_s


def wait_restarted(context: ClusterContext, pod: Any, container: str) -> None:
    """Wait until a container has restarted since `pod` was read."""
    name, before = pod["metadata"]["name"], restarts(pod, container)
    until(
        lambda: restarts(context.tools.get("pod", name, "--namespace", NAMESPACE), container) > before,
        f"{container} of {name} is restarted",
    )


def restarts(pod: Any, container: str) -> int:
    """Return the number of restarts of a container."""
    kinds = ("initContainerStatuses", "containerStatuses")
    statuses = [status for kind in kinds for status in pod["status"].get(kind, [])]
    return sum(status["restartCount"] for status in statuses if status["name"] == container)
