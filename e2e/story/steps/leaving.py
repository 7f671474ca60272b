"""The end: what the operator costs when nothing happens, and that nothing stays behind."""

from time import monotonic, sleep

from story.pool import NAME, NAMESPACE
from story.steps.control_plane import OPERATOR
from story.steps.installation import RELEASE, SYSTEM
from story.waiting import until
from story.world import World

IDLE_S = 20
OWNED = (
    "pods,statefulsets,deployments,replicasets,controllerrevisions,services,endpointslices,configmaps,secrets,"
    "serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,ingresses,leases"
)
CLUSTER_WIDE = "clusterroles,clusterrolebindings,customresourcedefinitions"


def idle_operator(world: World) -> None:
    """The operator idles beside a pool that needs nothing."""
    before_s, _ = _used(world)
    began_s = monotonic()
    sleep(IDLE_S)
    after_s, memory_mb = _used(world)
    cpu = (after_s - before_s) / (monotonic() - began_s)
    world.figures["operator_idle"] = {"cpu_cores": round(cpu, 4), "memory_mb": round(memory_mb, 1)}


def _used(world: World) -> tuple[float, float]:
    """CPU seconds and resident MB of the operator, as its process tells them."""
    pod = world.tools.items("pods", "--namespace", SYSTEM, "--selector", OPERATOR)[0]["metadata"]["name"]
    path = f"/api/v1/namespaces/{SYSTEM}/pods/{pod}:http/proxy/metrics"
    page = dict(
        line.rsplit(" ", 1)
        for line in world.tools.kubectl("get", f"--raw={path}").splitlines()
        if not line.startswith("#")
    )
    return float(page["process_cpu_seconds_total"]), float(page["process_resident_memory_bytes"]) / 1e6


def deleted_pool(world: World) -> None:
    """The pool is deleted, and all that it had goes with it."""
    world.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")
    until(lambda: nothing_of_the_pool(world), "nothing left of the pool")


def nothing_of_the_pool(world: World) -> bool:
    """Whether its namespace holds no object of it."""
    selector = f"penstock.dev/pool={NAME}"
    return not world.tools.exists(OWNED, "--namespace", NAMESPACE, "--selector", selector)


def uninstalled(world: World) -> None:
    """The chart is uninstalled and the definition deleted, and nothing remains."""
    world.tools.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout=2m")
    world.tools.kubectl("delete", "crd", "servingpools.penstock.dev", "--timeout=60s")
    mine = f"app.kubernetes.io/instance={RELEASE}"
    until(
        lambda: (
            not world.tools.exists(f"{OWNED}", "--namespace", SYSTEM, "--selector", mine)
            and not world.tools.exists(CLUSTER_WIDE, "--selector", mine)
        ),
        "nothing left of the release",
    )
    for namespace in (NAMESPACE, SYSTEM):
        world.tools.kubectl("delete", "namespace", namespace, "--timeout=120s")
