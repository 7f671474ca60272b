"""Other people's autoscalers, where a pool asks for one: a HorizontalPodAutoscaler, or KEDA's ScaledObject.

Both act on the pool's `scale` subresource, never on the StatefulSet: `spec.replicas` stays the one place
where the number of replicas is written.

KEDA asks Prometheus, and takes the largest of these as the number of replicas:

- memory: KV cache in use over all replicas, at `KV_TARGET` each;
- admission: ready replicas × requests that arrived / requests that were admitted. What a replica admits is
  what it can keep its promises for, so this is how many it would have taken to admit them all;
- where none may run: open requests, held ones among them, at as many as a replica runs. This is what wakes
  it.

An HPA asks the custom metrics API (prometheus-adapter) for the first: it knows only averages over pods.
"""

from typing import Any

from penstock_pool.autoscaling_spec import Autoscaling, ScaleDown, ScaleUp

from penstock_operator.inputs import Inputs
from penstock_operator.manifest import Manifest
from penstock_operator.names import replicas_service_name
from penstock_operator.objects.child import child

Json = dict[str, Any]

KV_TARGET = 0.7
"""Share of a replica's KV cache in use at which there are just enough replicas."""

LOOK_S = 15
"""Between two looks, of both."""


def autoscalers(inputs: Inputs) -> tuple[Manifest, ...]:
    """The one that the pool asks for; none where it scales by itself, or not at all."""
    told = inputs.pool.spec.autoscaling
    if told is None or told.by == "penstock":
        return ()
    return (_horizontal(inputs, told) if told.by == "hpa" else _scaled_object(inputs, told),)


def _horizontal(inputs: Inputs, told: Autoscaling) -> Manifest:
    metric = {
        "type": "Pods",
        "pods": {
            "metric": {"name": "penstock_replica_kv_used_ratio"},
            "target": {"type": "AverageValue", "averageValue": f"{KV_TARGET * 1000:g}m"},
        },
    }
    spec = {
        "scaleTargetRef": _target(inputs),
        "minReplicas": told.min_replicas,
        "maxReplicas": told.max_replicas,
        "metrics": [metric],
        "behavior": _behavior(told),
    }
    return child(inputs, "autoscaling/v2", "HorizontalPodAutoscaler", inputs.name, spec=spec)


def _scaled_object(inputs: Inputs, told: Autoscaling) -> Manifest:
    spec = {
        "scaleTargetRef": _target(inputs),
        "minReplicaCount": told.min_replicas,
        "maxReplicaCount": told.max_replicas,
        "pollingInterval": LOOK_S,
        "cooldownPeriod": round(told.idle_timeout_s),
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": _behavior(told)}},
        "triggers": [
            _trigger(told, query, threshold)
            for query, threshold in _questions(inputs, told.min_replicas == 0)
        ],
    }
    return child(inputs, "keda.sh/v1alpha1", "ScaledObject", inputs.name, spec=spec)


def _target(inputs: Inputs) -> Json:
    return {"apiVersion": "penstock.dev/v1alpha1", "kind": "ServingPool", "name": inputs.name}


def _trigger(told: Autoscaling, query: str, threshold: float) -> Json:
    metadata = {"serverAddress": told.prometheus_url, "query": query, "threshold": f"{threshold:g}"}
    return {"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}


def _questions(inputs: Inputs, may_sleep: bool) -> list[tuple[str, float]]:
    """What is asked, and how much of it one replica stands for. By the labels that a ServiceMonitor gives."""
    within = f'namespace="{inputs.owner.namespace}"'
    replicas = f'{{{within},service="{replicas_service_name(inputs.name)}"}}'
    requests = f'penstock_router_requests_total{{{within},service="{inputs.name}"'
    arrived, admitted = f"sum(rate({requests}}}[2m]))", f'sum(rate({requests},verdict="admitted"}}[2m]))'
    ready = f"sum(penstock_replica_engine_ready{replicas})"
    asked = [
        (f"sum(penstock_replica_kv_used_ratio{replicas})", KV_TARGET),
        (f"{ready} * {arrived} / ({admitted} > 0)", 1.0),
    ]
    if may_sleep:
        held = f'sum(penstock_router_open_requests{{{within},service="{inputs.name}"}})'
        asked.append((held, float(inputs.pool.spec.scheduling.max_running)))
    return asked


def _behavior(told: Autoscaling) -> Json:
    return {"scaleUp": _rules(told.scale_up), "scaleDown": _rules(told.scale_down)}


def _rules(told: ScaleUp | ScaleDown) -> Json:
    """A window, and at most so many pods at a time."""
    window: Json = {"stabilizationWindowSeconds": min(round(told.stabilization_window_s), 3600)}
    if told.max_step is None:
        return window
    return {**window, "policies": [{"type": "Pods", "value": told.max_step, "periodSeconds": LOOK_S}]}
