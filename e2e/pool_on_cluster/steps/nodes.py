"""A node is drained, or lost without closing its connections. Streams of its replica end complete.

The replica runs on the second node, routers and the control plane on the first. Long answers run beside the
usual traffic, so that the replica always serves some. All have the same prompt, so their texts must be equal.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import MODEL, NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import SECOND_NODE
from pool_on_cluster.traffic import PoolTraffic, SentRequest
from pool_on_cluster.waiting import until

LONG_ANSWER_TOKENS = 800
LONG_PER_S = 1.1
"""Not a divisor of the usual rate: `round-robin` would send all long answers to the same replica."""
LONG_REQUESTS = 10
"""Long answers that start after the node is drained or lost."""


def drain(context: ClusterContext) -> None:
    """A node is drained: its streams end or move, and its replica restarts on another node."""
    name = _start_on_second_node(context)
    with _long_answers(context) as traffic:
        _wait_for_streams(traffic, name)
        context.tools.kubectl(
            "drain", SECOND_NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"
        )
        traffic.wait_for_requests(LONG_REQUESTS)
    _wait_on_node1(context, name)


def loss(context: ClusterContext) -> None:
    """A node is lost: its streams move, and its replica restarts on another node once the node is deleted."""
    name = _start_on_second_node(context)
    with _long_answers(context) as traffic:
        streams = _wait_for_streams(traffic, name)
        context.local_cluster.lose_node(2)
        lost_s = monotonic()
        traffic.wait_for_requests(LONG_REQUESTS)
        until(lambda: all(request.ended_s for request in streams), "the lost node's streams end")
        context.figures["lost_node_streams"] = len(streams)
        context.figures["lost_node_streams_ended_s"] = round(monotonic() - lost_s, 1)
    context.tools.kubectl("delete", "node", SECOND_NODE)
    _wait_on_node1(context, name)


def _start_on_second_node(context: ClusterContext) -> str:
    """Add a replica on the second node and return its name. Both nodes are schedulable afterwards."""
    before = set(context.pod_names("replica"))
    context.tools.kubectl("cordon", "node1")
    context.tools.kubectl("uncordon", SECOND_NODE)
    _scale(context, REPLICAS + 1)
    context.tools.kubectl("uncordon", "node1")
    (name,) = set(context.pod_names("replica")) - before
    assert _node_of(context, name) == SECOND_NODE
    return name


def _wait_on_node1(context: ClusterContext, name: str) -> None:
    """Wait until the replica is ready on node 1, then scale down by one."""
    until(lambda: _node_of(context, name) == "node1", f"{name} starts on node 1")
    context.wait_reconciled(REPLICAS + 1)
    _scale(context, REPLICAS)


def _scale(context: ClusterContext, replicas: int) -> None:
    context.tools.kubectl("scale", f"pool/{NAME}", f"--replicas={replicas}", "--namespace", NAMESPACE)
    context.wait_reconciled(replicas)


def _node_of(context: ClusterContext, name: str) -> str | None:
    nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in context.pods("replica")}
    return nodes.get(name)


@contextmanager
def _long_answers(context: ClusterContext) -> Iterator[PoolTraffic]:
    """Request long answers until the block ends. Check that all are complete and equal."""
    with PoolTraffic(context.url, MODEL, LONG_PER_S, LONG_ANSWER_TOKENS) as traffic:
        yield traffic
        summary = traffic.summary()
    assert not summary.lost, f"long answers were lost: {summary.lost}"
    assert len(summary.texts) == 1, f"{len(summary.texts)} answers to one prompt"


def _wait_for_streams(traffic: PoolTraffic, replica: str) -> list[SentRequest]:
    """Wait until a replica streams long answers, and return these requests."""
    return until(
        lambda: [request for request in traffic.streaming if request.replica == replica],
        f"{replica} streams a long answer",
    )
