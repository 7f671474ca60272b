"""The pool's gateway changes from routers to Envoy and back, while clients send requests."""

from pool_on_cluster.context import ClusterContext, reconciled
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.kills import kill
from pool_on_cluster.waiting import until


def to_envoy(context: ClusterContext) -> None:
    """Envoys replace the routers, after every replica has opened its HTTP port."""
    _change(context, "envoy", {"endpoints", "envoy", "picker"})


def rolling_update(context: ClusterContext) -> None:
    """The Envoys roll, and no replica is restarted."""
    replicas, old = set(context.pod_names("replica")), set(context.pod_names("router"))
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"router": {"maxHeaderBytes": 16384}}})
    until(
        lambda: reconciled(context.pool(), REPLICAS) and not old & set(context.pod_names("router")),
        "all Envoys rolled",
    )
    assert set(context.pod_names("replica")) == replicas, "replicas were restarted too"


def picker_kill(context: ClusterContext) -> None:
    """A picker is killed; its Envoy forwards requests without it, and none is lost."""
    kill(context, context.pods("router")[0], "picker")
    context.wait_reconciled(REPLICAS)


def envoy_kill(context: ClusterContext) -> None:
    """An Envoy is killed; its open requests are lost, and no later ones."""
    killed_s = kill(context, context.pods("router")[0], "envoy")
    context.traffic.allow_losses(lambda request: request.started_s <= killed_s)
    context.wait_reconciled(REPLICAS)


def to_router(context: ClusterContext) -> None:
    """Routers replace the Envoys, before the replicas close their HTTP ports."""
    _change(context, "router", {"router"})


def _change(context: ClusterContext, gateway: str, containers: set[str]) -> None:
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"gateway": gateway}})
    until(
        lambda: _containers(context) == containers and reconciled(context.pool(), REPLICAS),
        f"pool {NAME} is reconciled with the gateway {gateway}",
        timeout_s=300,
    )


def _containers(context: ClusterContext) -> set[str]:
    pods = [pod["spec"] for pod in context.pods("router")]
    return {each["name"] for pod in pods for each in (*pod.get("initContainers", []), *pod["containers"])}
