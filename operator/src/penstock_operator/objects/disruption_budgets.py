"""Disruption budgets: nodes are emptied one pod of a component at a time.

As `maxUnavailable: 1`, so that a pool of one can be moved too. A pod that is not ready anyway holds up no
node.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, replica_name, router_name, selector
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import Inputs


def disruption_budgets(inputs: Inputs) -> tuple[Manifest, ...]:
    """For replicas and for routers."""
    return (
        _budget(inputs, replica_name(inputs.name), Component.REPLICA),
        _budget(inputs, router_name(inputs.name), Component.ROUTER),
    )


def _budget(inputs: Inputs, name: str, component: Component) -> Manifest:
    spec = {
        "maxUnavailable": 1,
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": selector(inputs.name, component)},
    }
    return child(inputs, "policy/v1", "PodDisruptionBudget", name, component=component, spec=spec)
