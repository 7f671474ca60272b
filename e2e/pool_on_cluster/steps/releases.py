"""The chart is upgraded and rolled back: the operator is replaced, and pools are not affected."""

from pool_on_cluster.pool import NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import CHART, RELEASE, SYSTEM
from pool_on_cluster.world import World, staying


def upgraded_and_rolled_back(world: World) -> None:
    """A release is upgraded and rolled back, and no pod of the pool is replaced."""
    before = _pods(world)
    where = ["--namespace", SYSTEM, "--wait", "--timeout=3m"]
    world.tools.helm("upgrade", RELEASE, CHART, "--reuse-values", "--set", "logging.level=debug", *where)
    world.settled(REPLICAS)
    world.tools.helm("rollback", RELEASE, "1", *where)
    world.settled(REPLICAS)
    assert _pods(world) == before, "pods of the pool were replaced"


def _pods(world: World) -> set[str]:
    pods = world.tools.items("pods", "--namespace", NAMESPACE)
    return {pod["metadata"]["uid"] for pod in staying(pods)}
