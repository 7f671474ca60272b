"""ServiceMonitor: how the Prometheus operator finds routers and replicas."""

from penstock_operator.inputs import Inputs
from penstock_operator.manifest import Manifest
from penstock_operator.names import POOL_LABEL
from penstock_operator.objects.child import child


def service_monitor(inputs: Inputs) -> tuple[Manifest, ...]:
    """One for both Services, where the pool asks for it. Each endpoint is on one of them only."""
    wanted = inputs.pool.spec.monitoring
    if not wanted.service_monitor:
        return ()
    spec = {
        "selector": {"matchLabels": {POOL_LABEL: inputs.name}},
        "targetLabels": [POOL_LABEL],
        "endpoints": [{"port": "http", "path": "/metrics"}, {"port": "metrics", "path": "/metrics"}],
    }
    made = child(
        inputs,
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        inputs.name,
        labels=dict(wanted.labels),
        spec=spec,
    )
    return (made,)
