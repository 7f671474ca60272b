"""External autoscalers: a HorizontalPodAutoscaler or KEDA's ScaledObject, if the pool asks for one.

Both scale the pool's `scale` subresource, never the StatefulSet, so the number of replicas is written only in
`spec.replicas`.

Only requests with an SLO count as demand. Best-effort tiers are served with the remaining capacity and cause
no scale-up, nor do requests that no replica could ever serve.

KEDA queries Prometheus and takes the largest of these as the number of replicas:

- filled: the admitted requests as a number of full replicas, divided by `TARGET_FILL`;
- shortfall: ready replicas / admitted share of the worst tier, if that share is below `targetAttainment`;
  divided by `TARGET_FILL`, and at most twice the ready replicas. Both values are of the same two minutes, so
  rejections by fewer replicas do not count against more;
- if the pool scales to zero: 1 while any request is open, including requests that wait for a replica. This
  starts the first replica.

Each query returns 0 if nothing is needed, and is empty only if Prometheus has no data. KEDA treats an empty
result as an error (`ignoreNullValues: false`), so nothing is scaled down then.

An HPA reads the first value from the custom metrics API (prometheus-adapter), which has only averages over
pods.
"""

from typing import Any, NamedTuple

from penstock_pool.autoscaling_spec import Autoscaling, ScaleDown, ScaleUp

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import replicas_service_name
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

Json = dict[str, Any]

TARGET_FILL = 0.9
"""Planned utilization of replicas. The rest serves new demand while more replicas start."""

MIN_ADMITTED_SHARE = 0.5
"""Lower bound of the admitted share, so that one scale-up at most doubles the replicas.

The effect of a scale-up is measured only when its replicas run.
"""

MIN_NOT_ADMITTED = 3
"""Minimum number of requests that were not admitted for a scale-up."""

RATE_WINDOW = "2m"
"""Window over which demand is averaged: four scrapes at Prometheus' usual interval of 30 s."""

POLL_INTERVAL_S = 15
"""Seconds between two evaluations, of both autoscalers."""


class _RequestMetrics(NamedTuple):
    """Metrics of the processes that count requests: routers, or sidecars behind another gateway.

    prefix: of the metrics' names. labels: their selector. ready: the metric of ready replicas.
    """

    prefix: str
    labels: str
    ready: str


def autoscalers(context: RenderContext) -> tuple[Manifest, ...]:
    """Return the autoscaler of the pool; empty if the operator scales it, or no autoscaler."""
    autoscaling = context.pool.spec.autoscaling
    if autoscaling is None or autoscaling.by == "penstock":
        return ()
    return (
        _horizontal(context, autoscaling)
        if autoscaling.by == "hpa"
        else _scaled_object(context, autoscaling),
    )


def _horizontal(context: RenderContext, autoscaling: Autoscaling) -> Manifest:
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "penstock_replica_filled_ratio"},
            "target": {"type": "AverageValue", "averageValue": f"{TARGET_FILL * 1000:g}m"},
        },
    }
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicas": autoscaling.min_replicas,
        "maxReplicas": autoscaling.max_replicas,
        "metrics": [metric],
        "behavior": _behavior(autoscaling),
    }
    return child(context, "autoscaling/v2", "HorizontalPodAutoscaler", context.name, spec=spec)


def _scaled_object(context: RenderContext, autoscaling: Autoscaling) -> Manifest:
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicaCount": autoscaling.min_replicas,
        "maxReplicaCount": autoscaling.max_replicas,
        "pollingInterval": POLL_INTERVAL_S,
        "cooldownPeriod": round(autoscaling.idle_timeout_s),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(autoscaling)}},
        "triggers": [
            _trigger(autoscaling, query, threshold) for query, threshold in _queries(context, autoscaling)
        ],
    }
    return child(context, "keda.sh/v1alpha1", "ScaledObject", context.name, spec=spec)


def _target(context: RenderContext) -> Json:
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "name": context.name}


def _trigger(autoscaling: Autoscaling, query: str, threshold: float) -> Json:
    metadata = {
        "serverAddress": autoscaling.prometheus_url,
        "query": query,
        "threshold": f"{threshold:g}",
        "ignoreNullValues": "false",
    }
    return {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}


def _queries(context: RenderContext, autoscaling: Autoscaling) -> list[tuple[str, float]]:
    """Return Prometheus queries, by a ServiceMonitor's labels, and the value that one replica can serve."""
    namespace = f'namespace="{context.owner.namespace}"'
    replicas = f'{namespace},service="{replicas_service_name(context.name)}"'
    metrics = (
        _RequestMetrics(
            "penstock_router", f'{namespace},service="{context.name}"', "penstock_router_replica_ready"
        )
        if context.gateway.front == "router"
        else _RequestMetrics("penstock_replica_http", replicas, "penstock_replica_engine_ready")
    )
    open_requests = f"sum({metrics.prefix}_open_requests{{{metrics.labels}}})"
    no_replicas = f"(sum({metrics.ready}{{{metrics.labels}}}) or 0 * {open_requests}) == 0"
    shortfall = _shortfall_query(context, replicas, metrics, autoscaling.target_attainment_or_default)
    queries = [
        (f"sum(penstock_replica_filled_ratio{{{replicas}}}) or {no_replicas}", TARGET_FILL),
        (f"{shortfall} or 0 * {open_requests}", TARGET_FILL),
    ]
    if autoscaling.min_replicas == 0:
        queries.append((f"clamp_max({open_requests}, 1)", 1.0))
    return queries


def _shortfall_query(
    context: RenderContext, replicas: str, metrics: _RequestMetrics, target_share: float
) -> str:
    """Return the query of the replicas needed to admit all demand; empty result if enough was admitted."""
    best_effort_tiers = "|".join(tier.name for tier in context.pool.spec.tiers if tier.best_effort)
    demand = f'{metrics.labels},verdict!="never"' + (
        f',tier!~"{best_effort_tiers}"' if best_effort_tiers else ""
    )
    verdicts = f"{metrics.prefix}_verdicts_total{{{demand}"
    ready = (
        f"avg_over_time(sum(penstock_replica_engine_ready{{{replicas}}})[{RATE_WINDOW}:{POLL_INTERVAL_S}s])"
    )
    admitted_share = (
        f'sum by (tier) (rate({verdicts},verdict="admitted"}}[{RATE_WINDOW}]))'
        f" / sum by (tier) (rate({verdicts}}}[{RATE_WINDOW}]))"
    )
    not_admitted = f'sum by (tier) (increase({verdicts},verdict!="admitted"}}[{RATE_WINDOW}]))'
    short = f"{admitted_share} < {target_share:g} and {not_admitted} >= {MIN_NOT_ADMITTED}"
    return f"{ready} / clamp_min(min({short}), {MIN_ADMITTED_SHARE:g})"


def _behavior(autoscaling: Autoscaling) -> Json:
    return {"scaleUp": _rules(autoscaling.scale_up), "scaleDown": _rules(autoscaling.scale_down)}


def _rules(autoscaling: ScaleUp | ScaleDown) -> Json:
    """Return an HPA's scaling rules: a window, and a limit of pods per period."""
    window: Json = {"stabilizationWindowSeconds": min(round(autoscaling.stabilization_window_s), 3600)}
    if autoscaling.max_step is None:
        return window
    return {
        **window,
        "policies": [{"type": "Pods", "value": autoscaling.max_step, "periodSeconds": POLL_INTERVAL_S}],
    }
