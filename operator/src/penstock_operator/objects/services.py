"""Services: the one that clients call, and headless ones that find each router and each replica.

The admin ports of routers have a Service of their own: whoever exposes the one that clients call, by a load
balancer or a route, exposes the API and nothing else.
"""

from penstock_operator.inputs import Inputs
from penstock_operator.manifest import Manifest
from penstock_operator.names import (
    ADMIN_PORT,
    METRICS_PORT,
    REPLICA_PORT,
    ROUTER_PORT,
    Component,
    admin_service_name,
    replicas_service_name,
    selector,
)
from penstock_operator.objects.child import child

HTTP_PORT = 80
"""Of the Service that clients call."""


def router_service(inputs: Inputs) -> Manifest:
    """`http://POOL.NAMESPACE/v1`: the pool, from inside the cluster."""
    spec = {
        "type": "ClusterIP",
        "selector": selector(inputs.name, Component.ROUTER),
        "ports": [{"name": "http", "port": HTTP_PORT, "targetPort": ROUTER_PORT, "appProtocol": "http"}],
    }
    return child(inputs, "v1", "Service", inputs.name, component=Component.ROUTER, spec=spec)


def admin_service(inputs: Inputs) -> Manifest:
    """Every router's admin port by itself, for Prometheus and `kubectl port-forward`."""
    spec = {
        "clusterIP": "None",
        "selector": selector(inputs.name, Component.ROUTER),
        "ports": [{"name": "admin", "port": ADMIN_PORT, "targetPort": ADMIN_PORT, "appProtocol": "http"}],
    }
    name = admin_service_name(inputs.name)
    return child(inputs, "v1", "Service", name, component=Component.ROUTER, spec=spec)


def replicas_service(inputs: Inputs) -> Manifest:
    """Every replica by itself: its EndpointSlices are what routers watch."""
    spec = {
        "clusterIP": "None",
        "selector": selector(inputs.name, Component.REPLICA),
        "ports": [
            {"name": "replica", "port": REPLICA_PORT, "targetPort": REPLICA_PORT, "appProtocol": "grpc"},
            {"name": "metrics", "port": METRICS_PORT, "targetPort": METRICS_PORT, "appProtocol": "http"},
        ],
    }
    name = replicas_service_name(inputs.name)
    return child(inputs, "v1", "Service", name, component=Component.REPLICA, spec=spec)
