"""Evidence of a failed step: all objects, all events, and the logs of all containers and their previous runs.

The kubelet removes a pod's logs with the pod, and the pod that lost a request in a rolling update is often
gone. So on the test's own cluster each log gets a hard link while it exists (`GoneLogs`).
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any, Self

from pool_on_cluster.kubectl import CommandFailed, Tools

KINDS = (
    "servingpools,pods,statefulsets,deployments,replicasets,services,endpointslices,configmaps,ingresses,"
    "poddisruptionbudgets,serviceaccounts,roles,rolebindings,networkpolicies,leases,nodes"
)

LOOK_EVERY_S = 1.0
"""A pod that is deleted takes longer."""


class GoneLogs:
    """Links the logs of a node's containers while its context is open. state: the cluster's folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._over = Event()
        self._thread = Thread(target=self._look, name="gone-logs", daemon=True)

    def __enter__(self) -> Self:
        _gone_logs(self._state).mkdir(exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_EVERY_S):
            link_logs(self._state)


def link_logs(state: Path) -> None:
    """Add a hard link to each container's log, so that it outlives its pod."""
    there = state / "node1" / "log" / "pods"
    for folder, _, names in os.walk(there):  # which passes over folders that go meanwhile
        for name in names:
            log = Path(folder, name)
            with suppress(FileExistsError, FileNotFoundError):
                os.link(log, _gone_logs(state) / "_".join(log.relative_to(there).parts))


def _gone_logs(state: Path) -> Path:
    return state / "gone-logs"


def keep_evidence(tools: Tools, folder: Path) -> None:
    """Write all evidence into a folder. Where a command fails, its file holds the error."""
    if (gone := _gone_logs(tools.kubeconfig.parent)).exists():
        shutil.copytree(gone, folder / "gone-logs")
    _keep(tools, folder / "objects.yaml", "get", KINDS, "--all-namespaces", "--output=yaml")
    _keep(tools, folder / "pods.txt", "describe", "pods", "--all-namespaces")
    _keep(tools, folder / "events.txt", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")
    _keep(tools, folder / "overview.txt", "get", "pools,pods", "--all-namespaces", "--output=wide")
    try:
        pods = tools.items("pods", "--all-namespaces")
    except CommandFailed:
        return
    for pod in pods:
        for container in _containers(pod):
            _keep_logs(tools, folder / "logs", pod["metadata"], container)


def _containers(pod: Any) -> list[str]:
    spec = pod["spec"]
    return [container["name"] for container in [*spec.get("initContainers", []), *spec["containers"]]]


def _keep_logs(tools: Tools, folder: Path, pod: Any, container: str) -> None:
    folder.mkdir(exist_ok=True)
    where = ["logs", "--namespace", pod["namespace"], pod["name"], "--container", container]
    _keep(tools, folder / f"{pod['name']}.{container}.log", *where)
    _keep(tools, folder / f"{pod['name']}.{container}.previous.log", *where, "--previous")


def _keep(tools: Tools, path: Path, *arguments: str) -> None:
    try:
        output = tools.kubectl(*arguments)
    except CommandFailed as failed:
        output = f"{failed}\n"
    path.write_text(output)
