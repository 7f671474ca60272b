"""Pods among a pool's objects: their component, and whether they are ready."""

from collections.abc import Iterable

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component


def pods_of(children: Iterable[Manifest]) -> list[Manifest]:
    """Return the pods among a pool's objects that are not being deleted."""
    return [c for c in children if c["kind"] == "Pod" and "deletionTimestamp" not in c["metadata"]]


def component_of(manifest: Manifest) -> Component | None:
    """Return the component of an object, or None."""
    label = manifest["metadata"].get("labels", {}).get("app.kubernetes.io/component")
    return Component(label) if label in set(Component) else None


def is_ready(pod: Manifest) -> bool:
    """Return whether a pod has an address and its Ready condition is true."""
    status = pod.get("status", {})
    ready = any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", ()))
    return ready and bool(status.get("podIP"))
