"""The chart is upgraded and rolled back: the operator is replaced, and pools keep running."""

from pool_on_cluster.context import ClusterContext, not_terminating
from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import CHART, RELEASE, SYSTEM


def upgrade_and_rollback(context: ClusterContext) -> None:
    """The release is upgraded and rolled back, and no pod of the pool is replaced."""
    before = _pods(context)
    flags = ["--namespace", SYSTEM, "--wait", "--timeout=3m"]
    context.tools.helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "logging.level=debug", *flags)
    context.wait_reconciled(REPLICAS)
    context.tools.helm("rollback", RELEASE, "1", *flags)
    context.wait_reconciled(REPLICAS)
    assert _pods(context) == before, "pods of the pool were replaced"


def _pods(context: ClusterContext) -> set[str]:
    pods = context.tools.items("pods", "--namespace", NAMESPACE)
    return {pod["metadata"]["uid"] for pod in not_terminating(pods)}
