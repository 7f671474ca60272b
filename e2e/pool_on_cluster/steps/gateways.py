"""Envoys replace the routers, and routers the Envoys, while clients send requests."""

from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.kills import kill
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World, settled


def to_envoy(world: World) -> None:
    """Envoys take the routers' place, after every replica has opened its HTTP port."""
    _change(world, "envoy", {"endpoints", "envoy", "picker"})


def rolled(world: World) -> None:
    """The Envoys roll, and no replica does."""
    replicas, old = set(world.pod_names("replica")), set(world.pod_names("router"))
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"router": {"maxHeaderBytes": 16384}}})
    until(
        lambda: settled(world.pool(), REPLICAS) and not old & set(world.pod_names("router")),
        "all Envoys rolled",
    )
    assert set(world.pod_names("replica")) == replicas, "replicas rolled too"


def killed_picker(world: World) -> None:
    """A picker is killed; its Envoy sends requests on without it, and none is lost."""
    kill(world, world.pods("router")[0], "picker")
    world.settled(REPLICAS)


def killed_envoy(world: World) -> None:
    """An Envoy is killed; its open requests are lost, and no later ones."""
    killed_s = kill(world, world.pods("router")[0], "envoy")
    world.traffic.excuse(lambda requested: requested.began_s <= killed_s)
    world.settled(REPLICAS)


def to_router(world: World) -> None:
    """Routers take the Envoys' place, before the replicas close their HTTP ports."""
    _change(world, "router", {"router"})


def _change(world: World, gateway: str, containers: set[str]) -> None:
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"gateway": gateway}})
    until(
        lambda: _containers(world) == containers and settled(world.pool(), REPLICAS),
        f"pool {NAME} settled with the gateway {gateway}",
        patience_s=300,
    )


def _containers(world: World) -> set[str]:
    pods = [pod["spec"] for pod in world.pods("router")]
    return {each["name"] for pod in pods for each in (*pod.get("initContainers", []), *pod["containers"])}
