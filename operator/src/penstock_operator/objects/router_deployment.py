"""The Deployment of a pool's gateway: routers, Envoys with their pickers, or pickers alone.

All gateways are pods of the same Deployment, so that a pool changes its gateway by a rolling update.

A new pod is ready before an old one stops. A stopping pod still serves while its readiness fails, until
proxies have removed it, and then finishes its requests.
"""

from typing import Any

from penstock_operator.manifests.digest import digest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import Component, router_name, selector, tls_name
from penstock_operator.objects.api_keys import key_volumes
from penstock_operator.objects.containers import (
    READABLE,
    config_volume,
    time_model_source,
    tls_volume,
)
from penstock_operator.objects.envoy_configuration import envoy_config_map
from penstock_operator.objects.envoy_containers import envoy_containers
from penstock_operator.objects.front_container import CERTIFICATE_MOUNT, TEMPORARY_MOUNT
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.picker_container import picker
from penstock_operator.objects.pod_template import pod_template
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.rollout import router_digest, router_grace_s
from penstock_operator.objects.router_container import router

Json = dict[str, Any]

CLIENT_ENTRIES = ("ca.crt", "client.crt", "client.key")
"""Entries of the TLS Secret that a router needs, or an Envoy and its picker."""

PICKER_ENTRIES = ("picker.crt", "picker.key")
"""Further entries that a picker for Gateways needs."""


def router_deployment(context: RenderContext) -> Manifest:
    """Return the Deployment."""
    name = router_name(context.name)
    template = pod_template(
        context,
        Component.ROUTER,
        _config_digest(context),
        context.pool.spec.router.pod_template,
        serviceAccountName=name,
        terminationGracePeriodSeconds=router_grace_s(context.pool),
        **_containers(context),
    )
    spec = {
        "replicas": context.pool.spec.router.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "minReadySeconds": 1,
        "revisionHistoryLimit": 5,
        "selector": {"matchLabels": selector(context.name, Component.ROUTER)},
        "template": template,
    }
    return child(context, "apps/v1", "Deployment", name, component=Component.ROUTER, spec=spec)


def _containers(context: RenderContext) -> Json:
    """Return the containers and volumes of the pod, by the pool's gateway."""
    if context.gateway.front != "envoy":
        container = router(context) if context.gateway.front == "router" else picker(context)
        return {
            "automountServiceAccountToken": True,
            "containers": [container],
            "volumes": _volumes(context),
        }
    envoy = envoy_containers(context)
    return {
        "automountServiceAccountToken": False,
        "initContainers": list(envoy.init),
        "containers": [envoy.main],
        "volumes": [*_volumes(context), *envoy.volumes],
    }


def _volumes(context: RenderContext) -> list[Json]:
    """Return the volumes of routers and pickers."""
    configuration = config_volume(
        router_name(context.name), *time_model_source(context), *key_volumes(context)
    )
    volumes = [configuration, {"name": TEMPORARY_MOUNT["name"], "emptyDir": {"sizeLimit": "64Mi"}}]
    if context.settings.tls:
        picker_entries = PICKER_ENTRIES if context.gateway.front == "inferencePool" else ()
        volumes.append(tls_volume(tls_name(context.name), (*CLIENT_ENTRIES, *picker_entries)))
    return [*volumes, *_certificate_volumes(context)]


def _certificate_volumes(context: RenderContext) -> list[Json]:
    """Return the volume of the API's certificate: a folder, as the kubelet updates no subPath mounts."""
    tls = context.pool.spec.router.tls
    if tls is None:
        return []
    source = {"secretName": tls.secret, "defaultMode": READABLE}
    return [{"name": CERTIFICATE_MOUNT["name"], "secret": source}]


def _config_digest(context: RenderContext) -> str:
    """Return the digest of what the pod reads. Envoy reads its configuration only when it starts."""
    file_digest = router_digest(context.pool)
    configuration = [each["data"] for each in envoy_config_map(context)]
    return digest([file_digest, *configuration]) if configuration else file_digest
