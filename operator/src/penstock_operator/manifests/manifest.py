"""Kubernetes objects as plain JSON, and references to them.

Nothing here depends on a client library: pure code makes and compares manifests, and the API client sends
them.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
"""One Kubernetes object as JSON. Never modified after it is made."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Reference to an object. Equal for two versions of the same object."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


@dataclass(frozen=True, slots=True)
class PoolOwner:
    """The ServingPool that owns objects. uid: of the API server, unique even among pools of the same name."""

    name: str
    namespace: str
    uid: str


def ref_of(manifest: Manifest) -> Ref:
    """Return the reference of a manifest's object."""
    metadata = manifest["metadata"]
    return Ref(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])
