"""The cost of an idle operator, and complete removal of the pool and the chart."""

from dataclasses import dataclass

from pool_on_cluster.context import ClusterContext
from pool_on_cluster.pool import NAME, NAMESPACE
from pool_on_cluster.steps.control_plane import OPERATOR
from pool_on_cluster.steps.installation import RELEASE, SYSTEM
from pool_on_cluster.waiting import until

IDLE_S = 20
OWNED = (
    "pods,statefulsets,deployments,replicasets,controllerrevisions,services,endpointslices,configmaps,secrets,"
    "serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,ingresses,leases"
)
CLUSTER_WIDE = "clusterroles,clusterrolebindings,customresourcedefinitions"


@dataclass(frozen=True, slots=True)
class ContainerUsage:
    """A container's CPU time and memory, as reported by the node's kubelet."""

    at_s: float
    cpu_s: float
    memory_bytes: float


def idle_operator(context: ClusterContext) -> None:
    """The operator's CPU and memory use are measured while the pool needs no action."""
    first = _usage(context)
    last = until(
        lambda: usage if (usage := _usage(context)).at_s >= first.at_s + IDLE_S else None,
        f"{IDLE_S} s of the operator's usage",
        interval_s=2,
    )
    cpu = (last.cpu_s - first.cpu_s) / (last.at_s - first.at_s)
    context.figures["operator_idle"] = {
        "cpu_cores": round(cpu, 4),
        "memory_mb": round(last.memory_bytes / 1e6, 1),
    }


def _usage(context: ClusterContext) -> ContainerUsage:
    pod = context.tools.items("pods", "--namespace", SYSTEM, "--selector", OPERATOR)[0]
    page = context.tools.kubectl(
        "get", f"--raw=/api/v1/nodes/{pod['spec']['nodeName']}/proxy/metrics/resource"
    )
    own = [line for line in page.splitlines() if f'pod="{pod["metadata"]["name"]}"' in line]
    sample = {line.partition("{")[0]: line.rpartition("} ")[2].split() for line in own}
    cpu_s, at_ms = map(float, sample["container_cpu_usage_seconds_total"])
    return ContainerUsage(at_ms / 1000, cpu_s, float(sample["container_memory_working_set_bytes"][0]))


def pool(context: ClusterContext) -> None:
    """The pool is deleted with all of its objects."""
    context.tools.kubectl("delete", "pool", NAME, "--namespace", NAMESPACE, "--timeout=60s")
    until(lambda: pool_objects_gone(context), "all objects of the pool are deleted")


def pool_objects_gone(context: ClusterContext) -> bool:
    """Return whether the namespace has no object of the pool."""
    selector = f"penstock.dev/pool={NAME}"
    return not context.tools.exists(OWNED, "--namespace", NAMESPACE, "--selector", selector)


def chart(context: ClusterContext) -> None:
    """The chart and the CRD are removed with all of their objects."""
    context.tools.helm("uninstall", RELEASE, "--namespace", SYSTEM, "--wait", "--timeout=2m")
    context.tools.kubectl("delete", "crd", "servingpools.penstock.dev", "--timeout=60s")
    own = f"app.kubernetes.io/instance={RELEASE}"
    until(
        lambda: (
            not context.tools.exists(OWNED, "--namespace", SYSTEM, "--selector", own)
            and not context.tools.exists(CLUSTER_WIDE, "--selector", own)
        ),
        "all objects of the release are deleted",
    )
    for namespace in (NAMESPACE, SYSTEM):
        context.tools.kubectl("delete", "namespace", namespace, "--timeout=120s")
