"""The shared state of all steps: the cluster, its tools, the traffic, and the figures."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pool_on_cluster.kubectl import Tools
from pool_on_cluster.place import OwnCluster, Place
from pool_on_cluster.pool import NAME, NAMESPACE
from pool_on_cluster.traffic import Traffic
from pool_on_cluster.waiting import until

ROOT = Path(__file__).resolve().parents[2]


@dataclass(slots=True)
class World:
    """State that steps add to: a step that needs the result of another comes after it."""

    place: Place
    results: Path
    figures: dict[str, Any] = field(default_factory=dict)
    tools_or_none: Tools | None = None
    url: str = ""
    traffic_or_none: Traffic | None = None

    @property
    def tools(self) -> Tools:
        assert self.tools_or_none is not None, "the cluster is not up"
        return self.tools_or_none

    @property
    def traffic(self) -> Traffic:
        assert self.traffic_or_none is not None, "there is no traffic in this step"
        return self.traffic_or_none

    @property
    def node(self) -> OwnCluster:
        """Return the test's own cluster, whose processes may be killed."""
        assert isinstance(self.place, OwnCluster)
        return self.place

    def pool(self) -> Any:
        """The pool as it is now."""
        return self.tools.get("pool", NAME, "--namespace", NAMESPACE)

    def pods(self, component: str) -> list[Any]:
        """Return the pool's pods of a component that are not terminating, by name."""
        selector = f"penstock.dev/pool={NAME},app.kubernetes.io/component={component}"
        pods = self.tools.items("pods", "--namespace", NAMESPACE, "--selector", selector)
        return sorted(staying(pods), key=lambda pod: str(pod["metadata"]["name"]))

    def pod_names(self, component: str) -> list[str]:
        """Their names."""
        return [pod["metadata"]["name"] for pod in self.pods(component)]

    def settled(self, replicas: int, patience_s: float = 180) -> None:
        """Wait until the pool's status reports its spec as done, with this number of replicas."""
        until(
            lambda: settled(self.pool(), replicas),
            f"pool {NAME} settled with {replicas} replicas",
            patience_s,
        )

    def changed(self, observe: Callable[[], Any], before: Any, what: str) -> Any:
        """Wait until an observation differs from what it was."""
        return until(lambda: (now := observe()) != before and now, what)


def staying(pods: Iterable[Any]) -> list[Any]:
    """Pods that are not deleted: a terminating pod is still listed until its processes have ended."""
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def settled(pool: Any, replicas: int) -> bool:
    """Whether a pool's status says that all of its spec is done."""
    status = pool.get("status", {})
    conditions = {condition["type"]: condition for condition in status.get("conditions", [])}
    seen = pool["metadata"]["generation"]
    output = {name: conditions.get(name, {}).get("status") for name in ("Ready", "Progressing", "Degraded")}
    return (
        status.get("observedGeneration") == seen
        and output == {"Ready": "True", "Progressing": "False", "Degraded": "False"}
        and status.get("replicas") == status.get("readyReplicas") == status.get("updatedReplicas") == replicas
    )
