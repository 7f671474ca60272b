"""A pool's own ServiceMonitor and the chart's PodMonitor name pools by the same label, which alerts read."""

from chart.rendered import rendered, the
from penstock_operator.manifests.manifest import PoolOwner
from penstock_operator.objects.render_context import RenderContext, RenderFacts
from penstock_operator.objects.service_monitor import service_monitor
from penstock_operator.settings import OperatorSettings
from penstock_pool import parse_pool

POOL = {
    "apiVersion": "penstock.dev/v1alpha1",
    "kind": "ServingPool",
    "metadata": {"name": "demo"},
    "spec": {
        "model": {"name": "m"},
        "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
        "tiers": [{"name": "chat", "slo": {"ttft": "800ms"}}],
        "monitoring": {"serviceMonitor": True},
    },
}


def test_both_ways_of_scraping_label_metrics_with_their_pool() -> None:
    owner = PoolOwner("demo", "apps", "uid")
    settings = OperatorSettings("router", "picker", "envoy", "sidecar", "simulator", "vllm", "plugin")
    (monitor,) = service_monitor(
        RenderContext(parse_pool(POOL, "pool"), owner, settings, RenderFacts(1, None))
    )
    endpoints = (
        monitor["spec"]["endpoints"] + the(rendered("ha"), "PodMonitor")["spec"]["podMetricsEndpoints"]
    )
    assert [[r["targetLabel"] for r in e["relabelings"] if "targetLabel" in r] for e in endpoints] == [
        ["pool"]
    ] * 4
