"""ConfigMaps: the pool file of replicas and of routers, and the learned capacity of a replica."""

from collections.abc import Iterable
from math import inf

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, learned_capacity_name, replica_name, router_name
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.pool_file import replica_file, router_file
from penstock_operator.objects.render_context import RenderContext

POOL_ENTRY = "pool.yaml"
CAPACITY_ENTRY = "capacityRps"


def replica_config_map(context: RenderContext) -> Manifest:
    """Return the ConfigMap that sidecars and simulated engines read."""
    data = {POOL_ENTRY: replica_file(context.pool, context.gateway.http)}
    return child(
        context, "v1", "ConfigMap", replica_name(context.name), component=Component.REPLICA, data=data
    )


def router_config_map(context: RenderContext) -> Manifest:
    """Return the ConfigMap that routers read."""
    data = {POOL_ENTRY: router_file(context.pool)}
    return child(context, "v1", "ConfigMap", router_name(context.name), component=Component.ROUTER, data=data)


def learned_config_map(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the ConfigMap that the operator itself reads after a restart; no pod mounts it."""
    capacity_rps = context.facts.capacity_rps
    if capacity_rps is None:
        return ()
    data = {CAPACITY_ENTRY: f"{capacity_rps:.3g}"}
    return (child(context, "v1", "ConfigMap", learned_capacity_name(context.name), data=data),)


def learned_capacity_rps(pool: str, children: Iterable[Manifest]) -> float | None:
    """Return the learned capacity in requests per second; None if it is missing or invalid."""
    for one in children:
        if one["kind"] == "ConfigMap" and one["metadata"]["name"] == learned_capacity_name(pool):
            try:
                capacity_rps = float(one["data"][CAPACITY_ENTRY])
            except (KeyError, TypeError, ValueError):
                return None
            return capacity_rps if 0.0 < capacity_rps < inf else None
    return None
