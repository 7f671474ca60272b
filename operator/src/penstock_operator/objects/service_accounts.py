"""Service accounts, and the routers' permissions: watch replicas' endpoints, get Secrets with API keys."""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import ROOT_CA, Component, replica_name, router_name
from penstock_operator.objects.api_keys import key_rules
from penstock_operator.objects.containers import READABLE
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

Json = dict[str, Any]

RBAC = "rbac.authorization.k8s.io"
TOKEN_MOUNT: Json = {
    "name": "account",
    "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    "readOnly": True,
}
TOKEN_S = 3607
"""Lifetime of a token in seconds, Kubernetes' default; the kubelet renews it."""


def accounts(context: RenderContext) -> tuple[Manifest, ...]:
    """Return both service accounts, the routers' Role and its binding. Replicas get no token."""
    router = router_name(context.name)
    rule = {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    }
    role = {"apiGroup": RBAC, "kind": "Role", "name": router}
    subject = {"kind": "ServiceAccount", "name": router, "namespace": context.owner.namespace}
    return (
        _account(context, replica_name(context.name), Component.REPLICA),
        _account(context, router, Component.ROUTER),
        child(
            context,
            f"{RBAC}/v1",
            "Role",
            router,
            component=Component.ROUTER,
            rules=[rule, *key_rules(context)],
        ),
        child(
            context,
            f"{RBAC}/v1",
            "RoleBinding",
            router,
            component=Component.ROUTER,
            roleRef=role,
            subjects=[subject],
        ),
    )


def _account(context: RenderContext, name: str, component: Component) -> Manifest:
    """Return an account that mounts no token by default; a pod that needs one requests it."""
    return child(
        context, "v1", "ServiceAccount", name, component=component, automountServiceAccountToken=False
    )


def token_volume() -> Json:
    """Return the volume that Kubernetes would mount into every container, to mount it into one only."""
    namespace = {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
    sources = [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": TOKEN_S}},
        {"configMap": {"name": ROOT_CA, "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [namespace]}},
    ]
    return {"name": TOKEN_MOUNT["name"], "projected": {"sources": sources, "defaultMode": READABLE}}
