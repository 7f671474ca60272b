"""Common metadata of a pool's objects: namespace, labels, and the pool as their owner."""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, component_labels, pool_labels
from penstock_operator.objects.render_context import RenderContext


def child(
    context: RenderContext,
    api_version: str,
    kind: str,
    name: str,
    *,
    component: Component | None = None,
    annotations: dict[str, str] | None = None,
    labels: dict[str, str] | None = None,
    **body: Any,
) -> Manifest:
    """Return an object of the pool.

    component None: of both components. labels: in addition to the pool's own.
    """
    owner = context.owner
    own = pool_labels(owner.name) if component is None else component_labels(owner.name, component)
    metadata: Manifest = {
        "name": name,
        "namespace": owner.namespace,
        "labels": {**(labels or {}), **own},
        "ownerReferences": [
            {
                "apiVersion": "penstock.dev/v1alpha1",
                "kind": "ServingPool",
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if annotations:
        metadata["annotations"] = dict(annotations)
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata, **body}
