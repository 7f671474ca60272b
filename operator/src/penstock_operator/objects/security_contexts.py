"""What pods may do: as little as the restricted Pod Security Standard allows, and a read-only root for ours.

Everything in a pod runs as one user, so that the engine may write to the socket that its sidecar owns.
Engines of others keep a writable root: they compile, cache and unpack where they like. One that needs root
says so in the pool's `podTemplate`.
"""

from typing import Any

USER = 65532
"""Nobody in particular, as distroless images have it."""

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

OWN_SECURITY: dict[str, Any] = {**ENGINE_SECURITY, "readOnlyRootFilesystem": True}
"""Of a container with an image of ours."""
