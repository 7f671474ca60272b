"""The first pool, and its time from `kubectl apply` to Ready."""

from statistics import median
from time import monotonic

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS, document
from pool_on_cluster.steps.removal import pool_objects_gone
from pool_on_cluster.waiting import until

RUNS = 5


def apply_to_ready(context: ClusterContext) -> None:
    """A pool is applied and becomes Ready, five times over."""
    took_s: list[float] = []
    for run in range(RUNS):
        if run:
            context.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE)
            until(lambda: pool_objects_gone(context), "all objects of the pool are deleted")
        started_s = monotonic()
        context.tools.apply(document(context.cluster.ingress_class), NAMESPACE)
        context.tools.kubectl(
            "wait", f"pool/{NAME}", "--namespace", NAMESPACE, "--for=condition=Ready", "--timeout=180s"
        )
        took_s.append(round(monotonic() - started_s, 1))
        context.wait_reconciled(REPLICAS)
    context.figures["apply_to_ready_s"] = {"p50": median(took_s), "all": took_s}
