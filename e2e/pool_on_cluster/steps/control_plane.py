"""The control plane fails and recovers. Requests do not depend on it, and no change is lost."""

from time import monotonic, time

from pool_on_cluster.kubectl import CommandFailed
from pool_on_cluster.pool import NAME, NAMESPACE, REPLICAS
from pool_on_cluster.steps.installation import SYSTEM
from pool_on_cluster.steps.kills import restarts
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

MEANWHILE = 30
"""Requests that begin while a process is stopped: ten seconds of them."""

OPERATOR = "app.kubernetes.io/component=operator"


def operator(world: World) -> None:
    """The operator is killed during a change, which its successor completes."""
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
    world.tools.kubectl(
        "delete", "pod", "--namespace", SYSTEM, "--selector", OPERATOR, "--grace-period=0", "--force"
    )
    world.settled(REPLICAS - 1)
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    world.settled(REPLICAS)


def api_server(world: World) -> None:
    """The API server is killed; it is back in seconds, and so is the operator's watch."""
    killed_s = monotonic()
    world.node.kill_api_server()
    until(lambda: not _answers(world), "the API server is gone", every_s=0.05)
    until(lambda: _answers(world), "the API server is back")
    world.figures["api_server_away_s"] = round(monotonic() - killed_s, 1)
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS + 1}})
    world.settled(REPLICAS + 1)
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    world.settled(REPLICAS)


def etcd(world: World) -> None:
    """etcd is stopped: the API server cannot answer, and requests are served."""
    with world.node.stopped("etcd"):
        until(lambda: not _answers(world), "the API server waits for etcd")
        world.traffic.more_requests(MEANWHILE)
    until(lambda: _answers(world), "the API server answers again")
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
    world.settled(REPLICAS - 1)
    world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
    world.settled(REPLICAS)


def slow_etcd(world: World) -> None:
    """etcd is slow: a change of the pool takes longer, and requests are served."""
    with world.node.slow("etcd"):
        began_s = monotonic()
        world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS - 1}})
        world.settled(REPLICAS - 1)
        world.figures["slow_etcd_change_s"] = round(monotonic() - began_s, 1)
        world.tools.patch("pool", NAME, NAMESPACE, {"spec": {"replicas": REPLICAS}})
        world.settled(REPLICAS)


def kubelet(world: World) -> None:
    """The kubelet is stopped while an engine is killed: streams move, and the engine starts later."""
    pod = world.pods("replica")[0]
    name = pod["metadata"]["name"]
    with world.node.stopped("kubelet"):
        world.node.kill(name, "engine", NAMESPACE)
        killed_s = time()
        world.traffic.excuse(lambda asked: asked.replica == name and asked.began_s <= killed_s)
        world.traffic.more_requests(MEANWHILE)
    until(
        lambda: (
            restarts(world.tools.get("pod", name, "--namespace", NAMESPACE), "engine")
            > restarts(pod, "engine")
        ),
        f"engine of {name} started again",
    )
    world.settled(REPLICAS)


def _answers(world: World) -> bool:
    try:
        return world.tools.kubectl("get", "--raw=/readyz", "--request-timeout=2s") == "ok"
    except CommandFailed:
        return False
