"""The shared state of all steps: the cluster, its tools, the traffic and the figures."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pool_on_cluster.clusters import Cluster, LocalCluster
from pool_on_cluster.kubectl import Tools
from pool_on_cluster.pool import NAME, NAMESPACE
from pool_on_cluster.traffic import PoolTraffic
from pool_on_cluster.waiting import until

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class ClusterContext:
    """State that steps extend. A step that needs the result of another comes after it."""

    cluster: Cluster
    results: Path
    figures: dict[str, Any] = field(default_factory=dict)
    tools_or_none: Tools | None = None
    url: str = ""
    traffic_or_none: PoolTraffic | None = None

    @property
    def tools(self) -> Tools:
        assert self.tools_or_none is not None, "the cluster is not up"
        return self.tools_or_none

    @property
    def traffic(self) -> PoolTraffic:
        assert self.traffic_or_none is not None, "there is no traffic in this step"
        return self.traffic_or_none

    @property
    def local_cluster(self) -> LocalCluster:
        """The local cluster, whose processes may be killed."""
        assert isinstance(self.cluster, LocalCluster)
        return self.cluster

    def pool(self) -> Any:
        """Return the pool's object."""
        return self.tools.get("pool", NAME, "--namespace", NAMESPACE)

    def pods(self, component: str) -> list[Any]:
        """Return the pool's pods of a component that are not terminating, by name."""
        selector = f"penstock.dev/pool={NAME},app.kubernetes.io/component={component}"
        pods = self.tools.items("pods", "--namespace", NAMESPACE, "--selector", selector)
        return sorted(not_terminating(pods), key=lambda pod: str(pod["metadata"]["name"]))

    def pod_names(self, component: str) -> list[str]:
        """Return the names of these pods."""
        return [pod["metadata"]["name"] for pod in self.pods(component)]

    def wait_reconciled(self, replicas: int, timeout_s: float = 180) -> None:
        """Wait until the pool is reconciled with this number of replicas."""
        until(
            lambda: reconciled(self.pool(), replicas),
            f"pool {NAME} is reconciled with {replicas} replicas",
            timeout_s,
        )


def not_terminating(pods: Iterable[Any]) -> list[Any]:
    """Return the pods that are not being deleted. A terminating pod is listed until its processes end."""
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def reconciled(pool: Any, replicas: int) -> bool:
    """Return whether a pool's status reports its spec as carried out, with this number of replicas."""
    status = pool.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    generation = pool["metadata"]["generation"]
    summary = {name: conditions.get(name, {}).get("status") for name in ("Ready", "Progressing", "Degraded")}
    return (
        status.get("observedGeneration") == generation
        and summary == {"Ready": "True", "Progressing": "False", "Degraded": "False"}
        and status.get("replicas") == status.get("readyReplicas") == status.get("updatedReplicas") == replicas
    )
