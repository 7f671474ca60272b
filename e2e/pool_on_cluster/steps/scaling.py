"""`kubectl scale`: new replicas serve when they are ready, removed ones first finish their requests."""

from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.world import World


def up(world: World) -> None:
    """The pool is scaled up by one."""
    _scale(world, REPLICAS + 1)


def down(world: World) -> None:
    """The pool is scaled down by two and up to three again."""
    _scale(world, REPLICAS - 1)
    _scale(world, REPLICAS)


def _scale(world: World, replicas: int) -> None:
    world.tools.kubectl("scale", f"pool/{NAME}", f"--replicas={replicas}", "--namespace", NAMESPACE)
    world.settled(replicas)
    assert len(world.pod_names("replica")) == replicas
