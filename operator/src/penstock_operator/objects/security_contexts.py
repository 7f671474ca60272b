"""Security contexts of pods: restricted Pod Security Standard, read-only root for Penstock's images.

All containers of a pod run as one user, so that the engine may write to its sidecar's socket. Third-party
engines keep a writable root, because they compile, cache and unpack into arbitrary folders. A pool whose
engine needs root sets it in its `podTemplate`.
"""

from typing import Any

USER = 65532
"""The user id `nonroot` of distroless images."""

POD_SECURITY: dict[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "fsGroupChangePolicy": "OnRootMismatch",
    "seccompProfile": {"type": "RuntimeDefault"},
}

ENGINE_SECURITY: dict[str, Any] = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
"""Security context of a container with a third-party image."""

PENSTOCK_SECURITY: dict[str, Any] = {**ENGINE_SECURITY, "readOnlyRootFilesystem": True}
"""Security context of a container with Penstock's image."""
