"""The StatefulSet of replicas: an engine and its sidecar in each pod.

It is a StatefulSet because GPUs are scarce: a Deployment would start the new pod beside the old one, or stop
the old one before the new one is ready, and its pod names, by which people read metrics and logs, change.
All pods start and stop together (`Parallel`): replicas are independent, and a scale-down drains all removed
replicas, those of the highest ordinals, at the same time.
"""

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    Component,
    replica_name,
    replicas_service_name,
    selector,
    tls_name,
)
from penstock_operator.objects.containers import TELEMETRY_MOUNT, config_volume, time_model_source, tls_volume
from penstock_operator.objects.engine_container import engine, engine_last, uses_gpus
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.pod_template import pod_template
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.rollout import MIN_READY_S, replica_digest, replica_grace_s
from penstock_operator.objects.sidecar_container import SERVER_ENTRIES, TEMPORARY, sidecar


def replica_set(context: RenderContext) -> Manifest:
    """Return the StatefulSet. Raises UnsupportedPool."""
    name, engine_container = replica_name(context.name), engine(context)
    volumes = [
        config_volume(name, *time_model_source(context)),
        {"name": TELEMETRY_MOUNT["name"], "emptyDir": {"sizeLimit": "1Mi"}},
        {"name": TEMPORARY, "emptyDir": {"sizeLimit": "64Mi"}},
        *engine_container.volumes,
    ]
    if context.settings.tls:
        volumes.append(tls_volume(tls_name(context.name), SERVER_ENTRIES))
    runtime_class = context.settings.gpu_runtime_class if uses_gpus(engine_container.container) else None
    template = pod_template(
        context,
        Component.REPLICA,
        replica_digest(context.pool, context.gateway.http),
        context.pool.spec.engine.pod_template,
        serviceAccountName=name,
        automountServiceAccountToken=False,
        terminationGracePeriodSeconds=replica_grace_s(context.pool),
        initContainers=[*engine_container.init, engine_container.container],
        containers=[sidecar(context)],
        volumes=volumes,
        **({"runtimeClassName": runtime_class} if runtime_class else {}),
    )
    spec = {
        "replicas": context.facts.replicas,
        "serviceName": replicas_service_name(context.name),
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "minReadySeconds": MIN_READY_S,
        "revisionHistoryLimit": 5,
        "selector": {"matchLabels": selector(context.name, Component.REPLICA)},
        "template": engine_last(template),
    }
    return child(context, "apps/v1", "StatefulSet", name, component=Component.REPLICA, spec=spec)
