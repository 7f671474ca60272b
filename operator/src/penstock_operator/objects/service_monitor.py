"""ServiceMonitor: makes the Prometheus operator scrape routers, pickers, Envoys and replicas."""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import POOL_LABEL
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

POOL_AS_LABEL = {
    "sourceLabels": ["__meta_kubernetes_service_label_penstock_dev_pool"],
    "targetLabel": "pool",
}
"""Relabeling that adds the pool's name, in the label that the chart's alerts and dashboard use."""


def service_monitor(context: RenderContext) -> tuple[Manifest, ...]:
    """Return a ServiceMonitor of the pool's Services, if the pool asks for it.

    Each endpoint is scraped once.
    """
    monitoring = context.pool.spec.monitoring
    if not monitoring.service_monitor:
        return ()
    pages = {"admin": "/metrics", "metrics": "/metrics"}
    if context.gateway.front == "envoy":
        pages["envoy"] = "/stats/prometheus"
    spec = {
        "selector": {"matchLabels": {POOL_LABEL: context.name}},
        "endpoints": [
            {"port": port, "path": path, "relabelings": [POOL_AS_LABEL]} for port, path in pages.items()
        ],
    }
    made = child(
        context,
        "monitoring.coreos.com/v1",
        "ServiceMonitor",
        context.name,
        labels=dict(monitoring.labels),
        spec=spec,
    )
    return (made,)
