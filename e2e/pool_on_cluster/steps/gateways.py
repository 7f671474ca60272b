"""The pool's gateway changes from routers to Envoy and back, while clients send requests."""

import re

from pool_on_cluster.context import ClusterContext, reconciled
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.kills import kill
from pool_on_cluster.steps.rolling_updates import update_replicas
from pool_on_cluster.waiting import until

WHOLE = re.compile(r'^penstock_replica_direct_answers_total{outcome="whole"} (\S+)$', re.MULTILINE)


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


def engine_kill(context: ClusterContext) -> None:
    """An engine behind the Envoys is killed; only its streams are lost, and requests before them hop."""
    pod = context.pods("replica")[1]
    name, killed_s = pod["metadata"]["name"], kill(context, pod, "engine")
    context.traffic.allow_losses(lambda request: request.replica == name and request.started_s <= killed_s)
    context.wait_reconciled(REPLICAS)


def answers_at_engines(context: ClusterContext) -> None:
    """Requests move from sidecars' ports to engines', replica by replica, over TLS with engines' names."""
    update_replicas(context, {"engine": {"answerPath": "direct"}})
    before = _answered_at_engines(context)
    until(lambda: _answered_at_engines(context) > before + REPLICAS, "engines answer the Envoys' requests")


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


def _answered_at_engines(context: ClusterContext) -> float:
    """Return the number of answers that gateways or routers have read from engines."""
    pages = [
        context.tools.kubectl("get", f"--raw=/api/v1/namespaces/{NAMESPACE}/pods/{name}:7001/proxy/metrics")
        for name in context.pod_names("replica")
    ]
    return sum(float(count) for page in pages for count in WHOLE.findall(page))


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
