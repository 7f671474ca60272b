"""What is kept where a step failed: every object and event, every container's log, also of its last life."""

from pathlib import Path
from typing import Any

from story.kubectl import CommandFailed, Tools

KINDS = (
    "servingpools,pods,statefulsets,deployments,replicasets,services,endpointslices,configmaps,ingresses,"
    "poddisruptionbudgets,serviceaccounts,roles,rolebindings,networkpolicies,leases,nodes"
)


def keep_evidence(tools: Tools, folder: Path) -> None:
    """Write all of it into a folder. What cannot be had is named in its place."""
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
        said = tools.kubectl(*arguments)
    except CommandFailed as failed:
        said = f"{failed}\n"
    path.write_text(said)
