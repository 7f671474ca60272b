"""Services: one for clients, and headless ones that resolve to each router and each replica.

The routers' admin ports have a separate Service, so that exposing the clients' Service by a load balancer or
a route exposes only the API.
"""

from typing import NamedTuple

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    ADMIN_PORT,
    ENVOY_PORT,
    METRICS_PORT,
    REPLICA_PORT,
    ROUTER_PORT,
    Component,
    admin_service_name,
    replicas_service_name,
    selector,
)
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext


class ApiPort(NamedTuple):
    """Port of the Service for clients. name: also its protocol."""

    name: str
    number: int


def api_port(context: RenderContext) -> ApiPort:
    """Return the API's port: HTTPS if the pool names a certificate."""
    return ApiPort("http", 80) if context.pool.spec.router.tls is None else ApiPort("https", 443)


def router_service(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the Service for clients in the cluster, `http://POOL.NAMESPACE/v1` or `https`.

    There is none with an InferencePool, whose clients connect to the Gateway.
    """
    if context.gateway.front == "inferencePool":
        return ()
    name, number = api_port(context)
    spec = {
        "type": "ClusterIP",
        "selector": selector(context.name, Component.ROUTER),
        "ports": [{"name": name, "port": number, "targetPort": ROUTER_PORT, "appProtocol": name}],
    }
    return (child(context, "v1", "Service", context.name, component=Component.ROUTER, spec=spec),)


def admin_service(context: RenderContext) -> Manifest:
    """Return the headless Service of the admin ports of routers or pickers, and of Envoys' metrics.

    It is for Prometheus and `kubectl port-forward`.
    """
    ports = [
        ("admin", ADMIN_PORT),
        *([("envoy", ENVOY_PORT)] if context.gateway.front == "envoy" else []),
    ]
    spec = {
        "clusterIP": "None",
        "selector": selector(context.name, Component.ROUTER),
        "ports": [
            {"name": name, "port": number, "targetPort": number, "appProtocol": "http"}
            for name, number in ports
        ],
    }
    name = admin_service_name(context.name)
    return child(context, "v1", "Service", name, component=Component.ROUTER, spec=spec)


def replicas_service(context: RenderContext) -> Manifest:
    """Return the headless Service of replicas, whose EndpointSlices routers watch."""
    spec = {
        "clusterIP": "None",
        "selector": selector(context.name, Component.REPLICA),
        "ports": [
            {"name": "replica", "port": REPLICA_PORT, "targetPort": REPLICA_PORT, "appProtocol": "grpc"},
            {"name": "metrics", "port": METRICS_PORT, "targetPort": METRICS_PORT, "appProtocol": "http"},
        ],
    }
    name = replicas_service_name(context.name)
    return child(context, "v1", "Service", name, component=Component.REPLICA, spec=spec)
