"""A node is drained, or lost without closing its connections. Streams of its replica end as if it had stayed.

The replica runs on the second node, routers and the control plane on the first. Long answers run beside the
usual traffic, so that some are under way at the replica; all have the same prompt, so their texts have to be
the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from pool_on_cluster.pool import MODEL, NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import SECOND_NODE
from pool_on_cluster.traffic import Asked, Traffic
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

LONG_ANSWER_TOKENS = 800
LONG_PER_S = 1.1
"""No divisor of the usual rate: with `round-robin` all long answers would come from the same replica."""
MEANWHILE = 10
"""Long answers that begin once the node is gone."""


def drained(world: World) -> None:
    """A node is drained: its streams end or move, and its replica starts on another node."""
    name = _another_replica(world)
    with _long_answers(world) as traffic:
        _streams_of(traffic, name)
        world.tools.kubectl(
            "drain", SECOND_NODE, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s"
        )
        traffic.more_requests(MEANWHILE)
    _returns_on_node1(world, name)


def lost(world: World) -> None:
    """A node is lost: its streams move, and its replica starts on another node once its object is deleted."""
    name = _another_replica(world)
    with _long_answers(world) as traffic:
        moving = _streams_of(traffic, name)
        world.node.lose(2)
        lost_s = monotonic()
        traffic.more_requests(MEANWHILE)
        until(lambda: all(asked.ended_s for asked in moving), "the lost node's streams ended")
        world.figures["lost_node_streams"] = len(moving)
        world.figures["lost_node_streams_ended_s"] = round(monotonic() - lost_s, 1)
    world.tools.kubectl("delete", "node", SECOND_NODE)
    _returns_on_node1(world, name)


def _another_replica(world: World) -> str:
    """Start one more replica, on the second node, which others may use then too. Return its name."""
    before = set(world.pod_names("replica"))
    world.tools.kubectl("cordon", "node1")
    world.tools.kubectl("uncordon", SECOND_NODE)
    _scale(world, REPLICAS + 1)
    world.tools.kubectl("uncordon", "node1")
    (name,) = set(world.pod_names("replica")) - before
    assert _node_of(world, name) == SECOND_NODE
    return name


def _returns_on_node1(world: World, name: str) -> None:
    """Wait until the replica serves on node 1, then scale down by one."""
    until(lambda: _node_of(world, name) == "node1", f"{name} starts on node 1")
    world.settled(REPLICAS + 1)
    _scale(world, REPLICAS)


def _scale(world: World, replicas: int) -> None:
    world.tools.kubectl("scale", f"pool/{NAME}", f"--replicas={replicas}", "--namespace", NAMESPACE)
    world.settled(replicas)


def _node_of(world: World, name: str) -> str | None:
    nodes = {pod["metadata"]["name"]: pod["spec"].get("nodeName") for pod in world.pods("replica")}
    return nodes.get(name)


@contextmanager
def _long_answers(world: World) -> Iterator[Traffic]:
    """Ask for long answers meanwhile. All of them have to be whole, and the same."""
    with Traffic(world.url, MODEL, LONG_PER_S, LONG_ANSWER_TOKENS) as traffic:
        yield traffic
        toll = traffic.toll()
    assert not toll.lost, f"long answers were lost: {toll.lost}"
    assert len(toll.texts) == 1, f"{len(toll.texts)} answers to one prompt"


def _streams_of(traffic: Traffic, replica: str) -> list[Asked]:
    """Wait until long answers come from a replica. Return them."""
    return until(
        lambda: [asked for asked in traffic.streaming if asked.replica == replica],
        f"a long answer comes from {replica}",
    )
