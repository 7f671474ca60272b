"""Deleted pods finish their requests, and routers notice immediately."""

from statistics import median
from time import monotonic
from typing import Any

import httpx2
import lightkube
from lightkube.resources.core_v1 import Pod
from penstock_operator.manifests.names import ADMIN_PORT

from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

GONE = {None, "terminating", "draining"}
"""What a router says of a replica that gets nothing new; None: nothing at all."""


def replicas(world: World) -> None:
    """Every replica's pod is deleted twice, one after another; routers notice within a second."""
    notice_s: list[float] = []
    for name in world.pod_names("replica") * 2:
        if world.place.own:
            notice_s.append(_until_noticed_s(world, name))
        else:
            world.tools.kubectl("delete", "pod", name, "--namespace", NAMESPACE, "--wait=false")
        until(lambda name=name: _replaced(world, name), f"{name} is new")  # type: ignore[misc]
        world.settled(REPLICAS)
    if notice_s:
        world.figures["change_to_router_s"] = {
            "p50": round(median(notice_s), 3),
            "max": round(max(notice_s), 3),
            "samples": len(notice_s),
        }
        assert median(notice_s) < 1, f"routers noticed after {notice_s} s"


def _until_noticed_s(world: World, name: str) -> float:
    """Return the seconds from a pod's deletion at the API server until a router notices."""
    address = world.pods("router")[0]["status"]["podIP"]
    with httpx2.Client(base_url=f"http://{world.place.forward(f'{address}:{ADMIN_PORT}')}") as router:
        assert _state(router, name) == "ready"
        api = lightkube.Client(config=lightkube.KubeConfig.from_file(world.tools.kubeconfig))
        api.delete(Pod, name, namespace=NAMESPACE)
        deleted_s = monotonic()
        until(lambda: _state(router, name) in GONE, f"a router knows that {name} goes", every_s=0.01)
        return monotonic() - deleted_s


def _state(router: httpx2.Client, name: str) -> Any:
    known = router.get("/penstock/v1/demand").raise_for_status().json()["replicas"]
    return next((replica["state"] for replica in known if replica["name"] == name), None)


def _replaced(world: World, name: str) -> bool:
    pods = world.tools.items("pods", "--namespace", NAMESPACE, f"--field-selector=metadata.name={name}")
    return any("deletionTimestamp" not in pod["metadata"] for pod in pods)


def routers(world: World) -> None:
    """Both routers' pods are deleted, one after another."""
    for name in world.pod_names("router"):
        world.tools.kubectl("delete", "pod", name, "--namespace", NAMESPACE, "--timeout=120s")
        world.settled(REPLICAS)
