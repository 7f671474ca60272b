"""The end: the cost of an idle operator, and removal without leftovers."""

from dataclasses import dataclass

from pool_on_cluster.pool import NAME, NAMESPACE
from pool_on_cluster.steps.control_plane import OPERATOR
from pool_on_cluster.steps.installation import RELEASE, SYSTEM
from pool_on_cluster.waiting import until
from pool_on_cluster.world import World

IDLE_S = 20
OWNED = (
    "pods,statefulsets,deployments,replicasets,controllerrevisions,services,endpointslices,configmaps,secrets,"
    "serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,ingresses,leases"
)
CLUSTER_WIDE = "clusterroles,clusterrolebindings,customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class Used:
    """A container's CPU and memory at a moment, as reported by the node's kubelet."""

    at_s: float
    cpu_s: float
    memory_bytes: float


def idle_operator(world: World) -> None:
    """The operator is idle while its pool needs no action."""
    first = _used(world)
    last = until(
        lambda: used if (used := _used(world)).at_s >= first.at_s + IDLE_S else None,
        f"{IDLE_S} s of the operator's use",
        every_s=2,
    )
    cpu = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    world.figures["operator_idle"] = {
        "cpu_cores": round(cpu, 4),
        "memory_mb": round(last.memory_bytes / 1e6, 1),
    }


def _used(world: World) -> Used:
    pod = world.tools.items("pods", "--namespace", SYSTEM, "--selector", OPERATOR)[0]
    page = world.tools.kubectl("get", f"--raw=/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/resource")
    mine = [line for line in page.splitlines() if f'pod="{pod["metadata"]["name"]}"' in line]
    sample = {line.partition("{")[0]: line.rpartition("} ")[2].split() for line in mine}
    cpu_s, at_ms = map(float, sample["container_cpu_usage_seconds_total"])
    return Used(at_ms / 1000, cpu_s, float(sample["container_memory_working_set_bytes"][0]))


def deleted_pool(world: World) -> None:
    """The pool is deleted, and all of its objects with it."""
    world.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")
    until(lambda: nothing_of_the_pool(world), "nothing left of the pool")


def nothing_of_the_pool(world: World) -> bool:
    """Return whether its namespace has no object of it."""
    selector = f"penstock.dev/pool={NAME}"
    return not world.tools.exists(OWNED, "--namespace", NAMESPACE, "--selector", selector)


def uninstalled(world: World) -> None:
    """The chart is uninstalled and the CRD deleted, and nothing remains."""
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
