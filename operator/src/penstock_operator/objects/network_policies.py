"""NetworkPolicies: who may connect to a pool's pods.

A replica is reached by its own pool's routers, and by nobody else: whoever talks to an engine directly takes
what was promised to others. Metrics, and all else on routers' admin ports, are for whoever collects them,
anywhere in the cluster. Routers' API is reached from everywhere: it is public by its nature, and guarded by
keys. Where pods connect to is not limited: hubs, tracing and Redis are elsewhere in every cluster. The
kubelet's probes come from the node and are always let in.
"""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    ADMIN_PORT,
    METRICS_PORT,
    REPLICA_PORT,
    ROUTER_PORT,
    Component,
    replica_name,
    router_name,
    selector,
)
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

ANY_POD: dict[str, Any] = {"namespaceSelector": {}}


def replica_network_policy(context: RenderContext) -> Manifest:
    """gRPC from this pool's routers, metrics from any pod, nothing else."""
    routers = {"podSelector": {"matchLabels": selector(context.name, Component.ROUTER)}}
    return _policy(
        context,
        replica_name(context.name),
        Component.REPLICA,
        [{"from": [routers], "ports": _tcp(REPLICA_PORT)}, {"from": [ANY_POD], "ports": _tcp(METRICS_PORT)}],
    )


def router_network_policy(context: RenderContext) -> Manifest:
    """The API from everywhere, the admin port from any pod, nothing else."""
    return _policy(
        context,
        router_name(context.name),
        Component.ROUTER,
        [{"ports": _tcp(ROUTER_PORT)}, {"from": [ANY_POD], "ports": _tcp(ADMIN_PORT)}],
    )


def _policy(context: RenderContext, name: str, component: Component, ingress: list[Any]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(context.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return child(context, "networking.k8s.io/v1", "NetworkPolicy", name, component=component, spec=spec)


def _tcp(port: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port}]
