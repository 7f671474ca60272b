"""One process of a pool hangs: its connections stay open without answers until its liveness probe ends it."""

from time import monotonic

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.steps.kills import wait_restarted


def sidecar(context: ClusterContext) -> None:
    """A sidecar hangs until Kubernetes restarts it; its streams move, and no requests are lost."""
    pod = context.pods("replica")[1]
    began_s = monotonic()
    context.local_cluster.hang(pod["metadata"]["name"], "sidecar", NAMESPACE)
    wait_restarted(context, pod, "sidecar")
    context.figures["hung_sidecar_s"] = round(monotonic() - began_s, 1)
    context.wait_reconciled(REPLICAS)
