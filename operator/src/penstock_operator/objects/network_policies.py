"""NetworkPolicies: which pods may connect to a pool's pods.

Only routers or Envoys of the same pool reach a replica: a request sent directly to an engine would take
capacity from admitted requests. With `answerPath: direct` they reach the engine too, which requires tickets,
or asks its sidecar. Any pod may reach the admin ports of routers and the metrics of replicas. The API is open
to all and protected by API keys. Egress is not limited, because hubs, tracing and Redis differ between
clusters. The kubelet's probes come from the node and are always allowed.
"""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    ADMIN_PORT,
    ENGINE_PORT,
    ENVOY_PORT,
    METRICS_PORT,
    PICKER_PORT,
    REPLICA_HTTP_PORT,
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
    """Allow this pool's routers, Envoys or pickers, an InferencePool's Gateways, and metrics from any pod."""
    ports = [REPLICA_PORT]
    if context.gateway.serves == "envoy":
        ports.append(REPLICA_HTTP_PORT)
    if context.pool.spec.engine.direct and context.gateway.front != "inferencePool":
        ports.append(ENGINE_PORT)
    to_gateways = context.gateway.serves == "inferencePool"
    routers = {"podSelector": {"matchLabels": selector(context.name, Component.ROUTER)}}
    return _policy(
        context,
        replica_name(context.name),
        Component.REPLICA,
        [
            {"from": [routers], "ports": _tcp(*ports)},
            *([_from_gateways(context, REPLICA_HTTP_PORT)] if to_gateways else []),
            {"from": [ANY_POD], "ports": _tcp(METRICS_PORT)},
        ],
    )


def router_network_policy(context: RenderContext) -> Manifest:
    """Allow the API from everywhere, the admin port and Envoy's metrics from any pod, nothing else.

    Pickers of an InferencePool serve no API; Gateways query them.
    """
    front = context.gateway.front
    from_clients = (
        _from_gateways(context, PICKER_PORT) if front == "inferencePool" else {"ports": _tcp(ROUTER_PORT)}
    )
    cluster_ports = [ADMIN_PORT, ENVOY_PORT] if front == "envoy" else [ADMIN_PORT]
    return _policy(
        context,
        router_name(context.name),
        Component.ROUTER,
        [from_clients, {"from": [ANY_POD], "ports": _tcp(*cluster_ports)}],
    )


def _from_gateways(context: RenderContext, port: int) -> dict[str, Any]:
    """Return the rule for the pods of Gateways, which run in the namespaces that the installation names."""
    namespaces = context.settings.gateway_namespaces
    in_namespaces = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(namespaces)}
    peer = {"namespaceSelector": {"matchExpressions": [in_namespaces]}} if namespaces else ANY_POD
    return {"from": [peer], "ports": _tcp(port)}


def _policy(context: RenderContext, name: str, component: Component, ingress: list[Any]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(context.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return child(context, "networking.k8s.io/v1", "NetworkPolicy", name, component=component, spec=spec)


def _tcp(*ports: int) -> list[dict[str, Any]]:
    return [{"protocol": "TCP", "port": port} for port in ports]
