"""Valid pools that cannot run report the cause within half a minute, and recover when it is removed."""

from collections.abc import Mapping
from typing import Any

from pool_on_cluster.context import ClusterContext, reconciled
from pool_on_cluster.pool import NAMESPACE, SMALL_REQUESTS, document
from pool_on_cluster.waiting import until

NAME = "degraded"
REPORT_TIMEOUT_S = 30
MISSING_IMAGE = "localhost/penstock/missing:dev"


def image_missing(context: ClusterContext) -> None:
    """A pool whose engine image is missing reports it, and recovers when the image is corrected."""
    pool = document(context.cluster.ingress_class, NAME, replicas=1)
    del pool["spec"]["ingress"]
    pool["spec"]["engine"]["image"] = MISSING_IMAGE
    context.tools.apply(pool, NAMESPACE)
    _wait_degraded(context, "ImageMissing", MISSING_IMAGE)
    _wait_recovered(context, {"engine": {"image": None}})


def gpus_missing(context: ClusterContext) -> None:
    """A pool that requests more GPUs than exist reports it, and recovers when it requests fewer."""
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"engine": {"resources": _gpus("100")}}})
    _wait_degraded(context, "GpuMissing", "nvidia.com/gpu")
    _wait_recovered(context, {"engine": {"resources": _gpus("1")}})
    context.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")


def _gpus(number: str) -> Mapping[str, Any]:
    return {"requests": SMALL_REQUESTS, "limits": {"memory": "1Gi", "nvidia.com/gpu": number}}


def _wait_degraded(context: ClusterContext, reason: str, named: str) -> None:
    """Wait until the condition has the reason and names the object, and an Event has the same reason."""

    def degraded_with_reason() -> bool:
        condition = _condition(context, "Degraded")
        return condition.get("reason") == reason and named in condition["message"]

    until(degraded_with_reason, f"Degraded for {reason}, naming {named}", timeout_s=REPORT_TIMEOUT_S)
    events = [
        "events",
        "--namespace",
        NAMESPACE,
        f"--field-selector=involvedObject.name={NAME},reason={reason}",
    ]
    until(lambda: context.tools.exists(*events), f"an Event {reason}", timeout_s=REPORT_TIMEOUT_S)


def _wait_recovered(context: ClusterContext, spec: Mapping[str, Any]) -> None:
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})
    until(lambda: reconciled(_pool(context), 1), f"pool {NAME} recovered")


def _condition(context: ClusterContext, kind: str) -> Mapping[str, Any]:
    conditions = _pool(context).get("status", {}).get("conditions", [])
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _pool(context: ClusterContext) -> Any:
    return context.tools.get("pool", NAME, "--namespace", NAMESPACE)
