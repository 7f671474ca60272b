"""The first pool, and its time from `kubectl apply` to Ready."""

from statistics import median
from time import monotonic

from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS, document
from pool_on_cluster.steps.leaving import nothing_of_the_pool
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

TIMES = 5


def from_apply_to_ready(world: World) -> None:
    """A pool is applied and becomes Ready, five times over."""
    took_s: list[float] = []
    for turn in range(TIMES):
        if turn:
            world.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE)
            until(lambda: nothing_of_the_pool(world), "nothing left of the pool")
        began_s = monotonic()
        world.tools.apply(document(world.place.ingress_class), NAMESPACE)
        world.tools.kubectl(
            "wait", f"pool/{NAME}", "--namespace", NAMESPACE, "--for=condition=Ready", "--timeout=180s"
        )
        took_s.append(round(monotonic() - began_s, 1))
        world.settled(REPLICAS)
    world.figures["apply_to_ready_s"] = {"p50": median(took_s), "all": took_s}
