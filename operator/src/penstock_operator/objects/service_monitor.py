"""ServiceMonitor: how the Prometheus operator finds routers and replicas."""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import POOL_LABEL
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

POOL_AS_LABEL = {
    "sourceLabels": ["__meta_kubernetes_service_label_penstock_dev_pool"],
    "targetLabel": "pool",
}
"""Which pool a metric is of, in the label that alerts and the dashboard of the chart know."""


def service_monitor(context: RenderContext) -> tuple[Manifest, ...]:
    """One for the pool's Services, where the pool asks for it. Each endpoint is on one of them only."""
    wanted = context.pool.spec.monitoring
    if not wanted.service_monitor:
        return ()
    spec = {
        "selector": {"matchLabels": {POOL_LABEL: context.name}},
        "endpoints": [
            {"port": port, "path": "/metrics", "relabelings": [POOL_AS_LABEL]}
            for port in ("admin", "metrics")
        ],
    }
    made = child(
        context,
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        context.name,
        labels=dict(wanted.labels),
        spec=spec,
    )
    return (made,)
