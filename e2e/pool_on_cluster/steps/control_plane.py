"""The control plane fails and recovers. Requests do not depend on it, and no change is lost."""

from time import monotonic, time

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.kubectl import CommandFailed
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import SYSTEM
from pool_on_cluster.steps.kills import wait_restarted
from pool_on_cluster.waiting import until

OUTAGE_REQUESTS = 30
"""Requests that start while a process is stopped: ten seconds of traffic."""

OPERATOR = "app.kubernetes.io/component=operator"


def operator(context: ClusterContext) -> None:
    """The operator is killed during a change, which the new operator completes."""
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
    context.tools.kubectl(
        "delete", "pod", "--namespace", SYSTEM, "--selector", OPERATOR, "--grace-period=0", "--force"
    )
    context.wait_reconciled(REPLICAS - 1)
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    context.wait_reconciled(REPLICAS)


def api_server(context: ClusterContext) -> None:
    """The API server is killed; it and the operator's watches recover in seconds."""
    killed_s = monotonic()
    context.local_cluster.kill_api_server()
    until(lambda: not _api_server_ready(context), "the API server stops answering", interval_s=0.05)
    until(lambda: _api_server_ready(context), "the API server answers again")
    context.figures["api_server_outage_s"] = round(monotonic() - killed_s, 1)
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS + 1}})
    context.wait_reconciled(REPLICAS + 1)
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    context.wait_reconciled(REPLICAS)


def etcd(context: ClusterContext) -> None:
    """etcd is stopped: the API server does not answer, and requests are still served."""
    with context.local_cluster.stopped("etcd"):
        until(lambda: not _api_server_ready(context), "the API server stops answering without etcd")
        context.traffic.wait_for_requests(OUTAGE_REQUESTS)
    until(lambda: _api_server_ready(context), "the API server answers again")
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
    context.wait_reconciled(REPLICAS - 1)
    context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    context.wait_reconciled(REPLICAS)


def slow_etcd(context: ClusterContext) -> None:
    """etcd is slow: a change of the pool takes longer, and requests are still served."""
    with context.local_cluster.slow("etcd"):
        started_s = monotonic()
        context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
        context.wait_reconciled(REPLICAS - 1)
        context.figures["slow_etcd_change_s"] = round(monotonic() - started_s, 1)
        context.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
        context.wait_reconciled(REPLICAS)


def kubelet(context: ClusterContext) -> None:
    """The kubelet is stopped while an engine is killed: streams move, and the engine restarts later."""
    pod = context.pods("replica")[0]
    name = pod["metadata"]["name"]
    with context.local_cluster.stopped("kubelet"):
        context.local_cluster.kill(name, "engine", NAMESPACE)
        killed_s = time()
        context.traffic.allow_losses(
            lambda request: request.replica == name and request.started_s <= killed_s
        )
        context.traffic.wait_for_requests(OUTAGE_REQUESTS)
    wait_restarted(context, pod, "engine")
    context.wait_reconciled(REPLICAS)


def _api_server_ready(context: ClusterContext) -> bool:
    try:
        return context.tools.kubectl("get", "--raw=/readyz", "--request-timeout=2s") == "ok"
    except CommandFailed:
        return False
