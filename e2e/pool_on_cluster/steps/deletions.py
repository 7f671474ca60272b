"""Deleted pods finish their requests, and routers notice immediately."""

from statistics import median
from time import monotonic
from typing import Any

import httpx2
import lightkube
from lightkube.resources.core_v1 import Pod
from penstock_operator.manifests.names import ADMIN_PORT

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until

LEAVING_STATES = {None, "terminating", "draining"}
"""States that a router reports of a replica that gets no new requests; None: not listed."""


def replicas(context: ClusterContext) -> None:
    """Every replica's pod is deleted twice, one after another; routers notice within a second."""
    notice_s: list[float] = []
    for name in context.pod_names("replica") * 2:
        if context.cluster.is_local:
            notice_s.append(_notice_time_s(context, name))
        else:
            context.tools.kubectl("delete", "pod", name, "--namespace", NAMESPACE, "--wait=false")
        until(lambda name=name: _replaced(context, name), f"{name} is replaced")  # type: ignore[misc]
        context.wait_reconciled(REPLICAS)
    if notice_s:
        context.figures["change_to_router_s"] = {
            "p50": round(median(notice_s), 3),
            "max": round(max(notice_s), 3),
            "samples": len(notice_s),
        }
        assert median(notice_s) < 1, f"routers noticed after {notice_s} s"


def _notice_time_s(context: ClusterContext, name: str) -> float:
    """Return the seconds from a pod's deletion at the API server until a router notices."""
    address = context.pods("router")[0]["status"]["podIP"]
    with httpx2.Client(base_url=f"http://{context.cluster.forward(f'{address}:{ADMIN_PORT}')}") as router:
        assert _state(router, name) == "ready"
        api = lightkube.Client(config=lightkube.KubeConfig.from_file(context.tools.kubeconfig))
        api.delete(Pod, name, namespace=NAMESPACE)
        deleted_s = monotonic()
        until(
            lambda: _state(router, name) in LEAVING_STATES,
            f"a router notices that {name} is deleted",
            interval_s=0.01,
        )
        return monotonic() - deleted_s


def _state(router: httpx2.Client, name: str) -> Any:
    listed = router.get("/penstock/v1/demand").raise_for_status().json()["replicas"]
    return next((replica["state"] for replica in listed if replica["name"] == name), None)


def _replaced(context: ClusterContext, name: str) -> bool:
    pods = context.tools.items("pods", "--namespace", NAMESPACE, f"--field-selector=metadata.name={name}")
    return any("deletionTimestamp" not in pod["metadata"] for pod in pods)


def routers(context: ClusterContext) -> None:
    """Both routers' pods are deleted, one after another."""
    for name in context.pod_names("router"):
        context.tools.kubectl("delete", "pod", name, "--namespace", NAMESPACE, "--timeout=120s")
        context.wait_reconciled(REPLICAS)
