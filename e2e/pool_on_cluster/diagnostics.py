"""Diagnostics of a failed step: all objects, events, and logs of all containers and of their previous runs.

The kubelet deletes a pod's logs with the pod, and the pod that lost a request in a rolling update is often
deleted by then. On the local cluster, `PodLogLinks` therefore keeps a hard link to each log.
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

POLL_INTERVAL_S = 1.0
"""Shorter than the deletion of a pod takes."""


class PodLogLinks:
    """Context manager that links the logs of node 1's containers. state: the cluster's folder."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._stopping = Event()
        self._thread = Thread(target=self._poll, name="pod-logs", daemon=True)

    def __enter__(self) -> Self:
        _links_folder(self._state).mkdir(exist_ok=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stopping.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stopping.wait(POLL_INTERVAL_S):
            link_logs(self._state)


def link_logs(state: Path) -> None:
    """Add a hard link to each container's log, so that it outlives its pod."""
    pods = state / "node1" / "log" / "pods"
    for folder, _, names in os.walk(pods):  # skips folders that are deleted meanwhile
        for name in names:
            log = Path(folder, name)
            with suppress(FileExistsError, FileNotFoundError):
                os.link(log, _links_folder(state) / "_".join(log.relative_to(pods).parts))


def _links_folder(state: Path) -> Path:
    return state / "pod-logs"


def save_diagnostics(tools: Tools, folder: Path) -> None:
    """Write all diagnostics into a folder. If a command fails, its file holds the error."""
    if (links := _links_folder(tools.kubeconfig.parent)).exists():
        shutil.copytree(links, folder / "pod-logs")
    _save_output(tools, folder / "objects.yaml", "get", KINDS, "--all-namespaces", "--output=yaml")
    _save_output(tools, folder / "pods.txt", "describe", "pods", "--all-namespaces")
    _save_output(
        tools, folder / "events.txt", "get", "events", "--all-namespaces", "--sort-by=.lastTimestamp"
    )
    _save_output(tools, folder / "overview.txt", "get", "pools,pods", "--all-namespaces", "--output=wide")
    try:
        pods = tools.items("pods", "--all-namespaces")
    except CommandFailed:
        return
    for pod in pods:
        for container in _containers(pod):
            _save_logs(tools, folder / "logs", pod["metadata"], container)


def _containers(pod: Any) -> list[str]:
    spec = pod["spec"]
    return [container["name"] for container in [*spec.get("initContainers", []), *spec["containers"]]]


def _save_logs(tools: Tools, folder: Path, pod: Any, container: str) -> None:
    folder.mkdir(exist_ok=True)
    command = ["logs", "--namespace", pod["namespace"], pod["name"], "--container", container]
    _save_output(tools, folder / f"{pod['name']}.{container}.log", *command)
    _save_output(tools, folder / f"{pod['name']}.{container}.previous.log", *command, "--previous")


def _save_output(tools: Tools, path: Path, *arguments: str) -> None:
    try:
        output = tools.kubectl(*arguments)
    except CommandFailed as failed:
        output = f"{failed}\n"
    path.write_text(output)
