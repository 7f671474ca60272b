"""`kubectl scale`: new replicas serve when they are ready, removed ones finish their requests first."""

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS


def up(context: ClusterContext) -> None:
    """The pool is scaled up by one."""
    _scale(context, REPLICAS + 1)


def down(context: ClusterContext) -> None:
    """The pool is scaled down by two and up to three again."""
    _scale(context, REPLICAS - 1)
    _scale(context, REPLICAS)


def _scale(context: ClusterContext, replicas: int) -> None:
    context.tools.kubectl("scale", f"pool/{NAME}", f"--replicas={replicas}", "--namespace", NAMESPACE)
    context.wait_reconciled(replicas)
    assert len(context.pod_names("replica")) == replicas
