"""ConfigMaps: the pool file, as replicas and as routers read it."""

from penstock_operator.inputs import Inputs
from penstock_operator.manifest import Manifest
from penstock_operator.names import Component, replica_name, router_name
from penstock_operator.objects.child import child
from penstock_operator.pool_file import replica_file, router_file

POOL_ENTRY = "pool.yaml"


def replica_config_map(inputs: Inputs) -> Manifest:
    """For sidecars and simulated engines."""
    data = {POOL_ENTRY: replica_file(inputs.pool)}
    return child(inputs, "v1", "ConfigMap", replica_name(inputs.name), component=Component.REPLICA, data=data)


def router_config_map(inputs: Inputs) -> Manifest:
    """For routers."""
    data = {POOL_ENTRY: router_file(inputs.pool)}
    return child(inputs, "v1", "ConfigMap", router_name(inputs.name), component=Component.ROUTER, data=data)
