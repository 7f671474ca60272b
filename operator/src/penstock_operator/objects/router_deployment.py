"""The Deployment of routers.

A new router is ready before an old one stops. A stopping router first serves on while `/ready` fails, until
proxies have removed it, and then finishes its requests.

Probes use the admin port, which answers while the API's port is at its connection limit, and which never has
TLS.
"""

from typing import Any

from penstock_operator.manifests.manifest import Manifest
from penstock_operator.manifests.names import (
    ADMIN_PORT,
    ROUTER_PORT,
    Component,
    replicas_service_name,
    router_name,
    selector,
    tls_name,
    tls_server_name,
)
from penstock_operator.objects.api_keys import key_arguments, key_volumes
from penstock_operator.objects.containers import (
    CONFIG_MOUNT,
    POOL_FILE,
    READABLE,
    TLS_FOLDER,
    TLS_MOUNT,
    config_volume,
    container,
    empty_folder,
    probe,
    resources,
    time_model_source,
    tls_volume,
)
from penstock_operator.objects.owned_object import child
from penstock_operator.objects.pod_template import pod_template
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.rollout import LAME_DUCK_S, router_digest, router_drain_s, router_grace_s
from penstock_operator.objects.services import api_port

Json = dict[str, Any]

ROUTER = "router"
CLIENT_ENTRIES = ("ca.crt", "client.crt", "client.key")
"""Entries of the TLS Secret that a router needs."""

CERTIFICATE_FOLDER = "/etc/penstock-certificate"
CERTIFICATE_MOUNT: Json = {"name": "certificate", "mountPath": CERTIFICATE_FOLDER, "readOnly": True}
"""Mount path of the API's certificate, if the pool names one."""

RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""Default of `spec.router.resources`."""


def router_deployment(context: RenderContext) -> Manifest:
    """Return the Deployment."""
    name, router = router_name(context.name), context.pool.spec.router
    temporary, its_mount = empty_folder("tmp", "/tmp", sizeLimit="64Mi")
    volumes = [config_volume(name, *time_model_source(context), *key_volumes(context)), temporary]
    if context.settings.tls:
        volumes.append(tls_volume(tls_name(context.name), CLIENT_ENTRIES))
    volumes += _certificate_volumes(context)
    template = pod_template(
        context,
        Component.ROUTER,
        router_digest(context.pool),
        router.pod_template,
        serviceAccountName=name,
        automountServiceAccountToken=True,
        terminationGracePeriodSeconds=router_grace_s(context.pool),
        containers=[_container(context, its_mount)],
        volumes=volumes,
    )
    spec = {
        "replicas": router.replicas,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1}},
        "minReadySeconds": 1,
        "revisionHistoryLimit": 5,
        "selector": {"matchLabels": selector(context.name, Component.ROUTER)},
        "template": template,
    }
    return child(context, "apps/v1", "Deployment", name, component=Component.ROUTER, spec=spec)


def _container(context: RenderContext, temporary: Json) -> Json:
    router, tls = context.pool.spec.router, context.settings.tls
    mounts = [CONFIG_MOUNT, temporary, *([CERTIFICATE_MOUNT] if router.tls else [])]
    return container(
        context,
        ROUTER,
        router.image or context.settings.router_image,
        command=["penstock-router"],
        args=[
            *_arguments(context),
            *_certificate_arguments(context),
            *(_tls_arguments(context) if tls else []),
        ],
        ports=[
            {"name": api_port(context).name, "containerPort": ROUTER_PORT},
            {"name": "admin", "containerPort": ADMIN_PORT},
        ],
        startupProbe=probe("/health", "admin", period_s=1, failures=60),
        livenessProbe=probe("/health", "admin", period_s=10, failures=6),
        readinessProbe=probe("/ready", "admin", period_s=1, failures=2),
        resources=resources(router.resources, RESOURCES),
        volumeMounts=[*mounts, TLS_MOUNT] if tls else mounts,
        **_redis(context),
    )


def _arguments(context: RenderContext) -> list[str]:
    service = f"{context.owner.namespace}/{replicas_service_name(context.name)}"
    return [
        "-f",
        POOL_FILE,
        "--host=0.0.0.0",
        f"--port={ROUTER_PORT}",
        "--admin-host=0.0.0.0",
        f"--admin-port={ADMIN_PORT}",
        f"--discover={service}",
        f"--lame-duck-s={LAME_DUCK_S:g}",
        f"--drain-s={router_drain_s(context.pool):g}",
        *key_arguments(context),
        "--log-json",
    ]


def _certificate_arguments(context: RenderContext) -> list[str]:
    if context.pool.spec.router.tls is None:
        return []
    return [f"--tls-cert={CERTIFICATE_FOLDER}/tls.crt", f"--tls-key={CERTIFICATE_FOLDER}/tls.key"]


def _certificate_volumes(context: RenderContext) -> list[Json]:
    """Return the volume of the API's certificate: a folder, as the kubelet updates no subPath mounts."""
    tls = context.pool.spec.router.tls
    if tls is None:
        return []
    shown = {"secretName": tls.secret, "defaultMode": READABLE}
    return [{"name": CERTIFICATE_MOUNT["name"], "secret": shown}]


def _tls_arguments(context: RenderContext) -> list[str]:
    return [
        f"--replica-tls-ca={TLS_FOLDER}/ca.crt",
        f"--replica-tls-cert={TLS_FOLDER}/client.crt",
        f"--replica-tls-key={TLS_FOLDER}/client.key",
        f"--replica-tls-server-name={tls_server_name(context.name, context.owner.namespace)}",
    ]


def _redis(context: RenderContext) -> Json:
    """Return the environment variable with the URL of the routers' Redis; none without its Secret."""
    secret = context.settings.redis_url_secret
    if secret is None:
        return {}
    source = {"secretKeyRef": {"name": secret, "key": "url"}}
    return {"env": [{"name": "PENSTOCK_REDIS_URL", "valueFrom": source}]}
