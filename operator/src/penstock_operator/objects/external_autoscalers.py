"""Other people's autoscalers, where a pool asks for one: a HorizontalPodAutoscaler, or KEDA's ScaledObject.

Both act on the pool's `scale` subresource, never on the StatefulSet: `spec.replicas` stays the one place
where the number of replicas is written.

Demand is what has an SLO. A tier without one is served in what is left and asks for no replica; nor does a
request that no replica could ever serve.

KEDA asks Prometheus, and takes the largest of these as the number of replicas:

- filled: how many full replicas the admitted requests make, at `FILL` each;
- short: replicas that were ready / share of the worst tier that was admitted, where that share is below
  `targetAttainment`; at `FILL` each, and at most twice as many as there were. Both are of the same two
  minutes: what fewer replicas refused is not asked of more;
- where none may run: 1 while any request is open, held ones among them. This is what wakes the pool.

Each is 0 where there is nothing to do, and empty only where Prometheus does not know: KEDA takes that for an
error (`ignoreNullValues`) and nothing is scaled down.

An HPA asks the custom metrics API (prometheus-adapter) for the first: it knows only averages over pods.
"""

from typing import Any

from penstock_pool.autoscaling_spec import Autoscaling, ScaleDown, ScaleUp

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import replicas_service_name
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.render_context import RenderContext

Json = dict[str, Any]

FILL = 0.9
"""How full replicas are planned to be; what is left takes what comes while more of them start."""

LEAST_KEPT = 0.5
"""A shortfall asks for at most twice the replicas: whether growth helps shows only when it is there."""

FEWEST = 3
"""So many requests have to have fallen short."""

AVERAGED = "2m"
"""Demand is averaged over so long: four scrapes at Prometheus' usual interval of 30 s."""

LOOK_S = 15
"""Between two looks, of both."""


def autoscalers(context: RenderContext) -> tuple[Manifest, ...]:
    """The one that the pool asks for; none where it scales by itself, or not at all."""
    told = context.pool.spec.autoscaling
    if told is None or told.by == "penstock":
        return ()
    return (_horizontal(context, told) if told.by == "hpa" else _scaled_object(context, told),)


def _horizontal(context: RenderContext, told: Autoscaling) -> Manifest:
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "penstock_replica_filled_ratio"},
            "target": {"type": "AverageValue", "averageValue": f"{FILL * 1000:g}m"},
        },
    }
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicas": told.min_replicas,
        "maxReplicas": told.max_replicas,
        "metrics": [metric],
        "behavior": _behavior(told),
    }
    return child(context, "autoscaling/v2", "HorizontalPodAutoscaler", context.name, spec=spec)


def _scaled_object(context: RenderContext, told: Autoscaling) -> Manifest:
    spec = {
        "scaleTargetRef": _target(context),
        "minReplicaCount": told.min_replicas,
        "maxReplicaCount": told.max_replicas,
        "pollingInterval": LOOK_S,
        "cooldownPeriod": round(told.idle_timeout_s),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(told)}},
        "triggers": [_trigger(told, query, threshold) for query, threshold in _questions(context, told)],
    }
    return child(context, "keda.sh/v1alpha1", "ScaledObject", context.name, spec=spec)


def _target(context: RenderContext) -> Json:
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "name": context.name}


def _trigger(told: Autoscaling, query: str, threshold: float) -> Json:
    metadata = {
        "serverAddress": told.prometheus_url,
        "query": query,
        "threshold": f"{threshold:g}",
        "ignoreNullValues": "false",
    }
    return {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}


def _questions(context: RenderContext, told: Autoscaling) -> list[tuple[str, float]]:
    """What is asked, and how much of it one replica stands for. By the labels that a ServiceMonitor gives."""
    within = f'namespace="{context.owner.namespace}"'
    replicas, routers = (
        f'{within},service="{replicas_service_name(context.name)}"',
        f'{within},service="{context.name}"',
    )
    known = f"0 * sum(penstock_router_open_requests{{{routers}}})"
    without = f"(sum(penstock_router_replica_ready{{{routers}}}) or {known}) == 0"
    asked = [
        (f"sum(penstock_replica_filled_ratio{{{replicas}}}) or {without}", FILL),
        (f"{_short(context, replicas, routers, told.attainment_wanted)} or {known}", FILL),
    ]
    if told.min_replicas == 0:
        asked.append((f"clamp_max(sum(penstock_router_open_requests{{{routers}}}), 1)", 1.0))
    return asked


def _short(context: RenderContext, replicas: str, routers: str, wanted: float) -> str:
    """Replicas that it would have taken to admit everything; empty where enough was admitted."""
    idle = "|".join(tier.name for tier in context.pool.spec.tiers if tier.best_effort)
    demand = f'{routers},verdict!="never"' + (f',tier!~"{idle}"' if idle else "")
    verdicts = f"penstock_router_verdicts_total{{{demand}"
    ready = f"avg_over_time(sum(penstock_replica_engine_ready{{{replicas}}})[{AVERAGED}:{LOOK_S}s])"
    kept = (
        f'sum by (tier) (rate({verdicts},verdict="admitted"}}[{AVERAGED}]))'
        f" / sum by (tier) (rate({verdicts}}}[{AVERAGED}]))"
    )
    refused = f'sum by (tier) (increase({verdicts},verdict!="admitted"}}[{AVERAGED}]))'
    return f"{ready} / clamp_min(min({kept} < {wanted:g} and {refused} >= {FEWEST}), {LEAST_KEPT:g})"


def _behavior(told: Autoscaling) -> Json:
    return {"scaleUp": _rules(told.scale_up), "scaleDown": _rules(told.scale_down)}


def _rules(told: ScaleUp | ScaleDown) -> Json:
    """A window, and at most so many pods at a time."""
    window: Json = {"stabilizationWindowSeconds": min(round(told.stabilization_window_s), 3600)}
    if told.max_step is None:
        return window
    return {**window, "policies": [{"type": "Pods", "value": told.max_step, "periodSeconds": LOOK_S}]}
