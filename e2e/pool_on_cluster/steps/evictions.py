"""Evictions, as of a drained node: the pool's disruption budgets limit them."""

import json

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAMESPACE, REPLICAS


def limited_by_the_budget(context: ClusterContext) -> None:
    """One pod of each kind is evicted, a second eviction at the same time is rejected."""
    first, second, *_ = context.pod_names("replica")
    _evict(context, first)
    output = context.tools.expect_error(*_command(second), stdin=_eviction(second))
    assert "disruption budget" in output, output
    context.wait_reconciled(REPLICAS)
    router, other, *_ = context.pod_names("router")
    _evict(context, router)
    output = context.tools.expect_error(*_command(other), stdin=_eviction(other))
    assert "disruption budget" in output, output
    context.wait_reconciled(REPLICAS)


def _evict(context: ClusterContext, pod: str) -> None:
    context.tools.kubectl(*_command(pod), stdin=_eviction(pod))


def _command(pod: str) -> list[str]:
    return ["create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}/eviction", "--filename=-"]


def _eviction(pod: str) -> str:
    metadata = {"name": pod, "namespace": NAMESPACE}
    return json.dumps({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})
