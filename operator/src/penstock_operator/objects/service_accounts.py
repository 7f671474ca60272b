"""Service accounts, and the routers' permissions: watch replicas' endpoints, get Secrets with API keys."""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, replica_name, router_name
from penstock_operator.objects.api_keys import key_rules
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

RBAC = "rbac.authorization.k8s.io"


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
