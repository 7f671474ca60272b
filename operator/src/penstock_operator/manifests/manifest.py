"""Kubernetes objects as the API server writes them, and how to point at one.

A manifest is plain JSON. Nothing here knows a client library: pure code makes and compares manifests, the
shell carries them to the API server.
"""

from dataclasses import dataclass
from typing import Any

Manifest = dict[str, Any]
"""One Kubernetes object, as JSON. What is made here is never changed afterwards."""


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Which object. Equal for two versions of the same object."""

    api_version: str
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}"'


@dataclass(frozen=True, slots=True)
class PoolOwner:
    """The ServingPool that objects are made for. uid: the API server's, new for every pool of one name."""

    name: str
    namespace: str
    uid: str


def ref_of(manifest: Manifest) -> Ref:
    """The object that a manifest is of."""
    metadata = manifest["metadata"]
    return Ref(manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"])
