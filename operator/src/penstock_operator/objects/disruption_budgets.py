"""PodDisruptionBudgets: draining nodes evicts one pod of a component at a time.

They set `maxUnavailable: 1`, so that a pool of one replica can be evicted too. A pod that is not ready does
not block draining a node.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, replica_name, router_name, selector
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext


def disruption_budgets(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the budgets of replicas and of routers."""
    return (
        _budget(context, replica_name(context.name), Component.REPLICA),
        _budget(context, router_name(context.name), Component.ROUTER),
    )


def _budget(context: RenderContext, name: str, component: Component) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(context.name, component)},
    }
    return child(context, "policy/v1", "PodDisruptionBudget", name, component=component, spec=spec)
