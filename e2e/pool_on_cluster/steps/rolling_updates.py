"""A change of the spec restarts the pods that it concerns, one at a time, and no others."""

from collections.abc import Mapping
from typing import Any

from pool_on_cluster.context import ClusterContext, reconciled
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.waiting import until

KV_TOKENS = 20_000


def engine(context: ClusterContext) -> None:
    """The KV cache size changes, with at most one replica unavailable."""
    routers = _uids(context, "router")
    update_replicas(context, {"engine": {"kvCacheTokens": KV_TOKENS}})
    assert _uids(context, "router") == routers, "the routers were restarted too"


def policy(context: ClusterContext) -> None:
    """The policy changes, with at most one replica unavailable."""
    update_replicas(context, {"scheduling": {"policy": "sarathi"}})
    assert context.pool()["status"]["policy"] == "sarathi"


def update_replicas(context: ClusterContext, spec: Mapping[str, Any]) -> None:
    """Change the spec, and wait until all replicas are updated, with at most one unavailable."""
    old, fewest = _uids(context, "replica"), REPLICAS
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": spec})

    def updated() -> bool:
        nonlocal fewest
        fewest = min(fewest, sum(map(_ready, context.pods("replica"))))
        return reconciled(context.pool(), REPLICAS) and not old & _uids(context, "replica")

    until(updated, "all replicas are updated")
    assert fewest >= REPLICAS - 1, f"{fewest} of {REPLICAS} replicas were ready during the update"


def router(context: ClusterContext) -> None:
    """The routers' configuration changes, and no replica is restarted."""
    replicas, old = _uids(context, "replica"), _uids(context, "router")
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"router": {"maxInflight": 2048}}})
    until(
        lambda: reconciled(context.pool(), REPLICAS) and not old & _uids(context, "router"),
        "all routers rolled",
    )
    assert _uids(context, "replica") == replicas, "replicas were restarted too"


def _uids(context: ClusterContext, component: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in context.pods(component)}


def _ready(pod: Any) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
