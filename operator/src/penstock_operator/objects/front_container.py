"""The common parts of routers and pickers: discovery of replicas, admin port, probes.

Probes use the admin port, which answers while a router's API is at its connection limit, and which never has
TLS.
"""

from collections.abc import Sequence
from typing import Any

from penstock_operator.manifests.names import ADMIN_PORT, replicas_service_name, tls_server_name
from penstock_operator.objects.api_keys import key_arguments
from penstock_operator.objects.containers import (
    CONFIG_MOUNT,
    POOL_FILE,
    TLS_FOLDER,
    TLS_MOUNT,
    container,
    liveness,
    probe,
    resources,
)
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.rollout import LAME_DUCK_S, router_drain_s

Json = dict[str, Any]

TEMPORARY_MOUNT: Json = {"name": "tmp", "mountPath": "/tmp"}
CERTIFICATE_FOLDER = "/etc/penstock-certificate"
CERTIFICATE_MOUNT: Json = {"name": "certificate", "mountPath": CERTIFICATE_FOLDER, "readOnly": True}
"""Mount path of the API's certificate, if the pool names one."""

RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""Default of `spec.router.resources`."""


def front_container(
    context: RenderContext,
    name: str,
    image: str,
    listens: Sequence[str],
    *,
    ports: Sequence[Json] = (),
    mounts: Sequence[Json] = (),
    arguments: Sequence[str] = (),
    environment: Sequence[Json] = (),
    drains: bool = True,
) -> Json:
    """Return the container of a router or picker, whose program is `penstock-NAME`.

    image: used if the pool names none. listens: arguments for its listening addresses. arguments,
    environment: additional ones. mounts: in addition to configuration, temporary files and keys.
    drains: whether it serves requests, itself or by its Envoy, and waits for their end on SIGTERM.
    """
    router, tls = context.pool.spec.router, context.settings.tls
    return container(
        context,
        name,
        router.image or image,
        command=[f"penstock-{name}"],
        args=[
            "-f",
            POOL_FILE,
            *listens,
            *_common_arguments(context, drains),
            *arguments,
            *(_tls_arguments(context) if tls else []),
        ],
        ports=[*ports, {"name": "admin", "containerPort": ADMIN_PORT}],
        startupProbe=probe("/health", "admin", period_s=1, failures=60),
        livenessProbe=liveness("/health", "admin"),
        readinessProbe=probe("/ready", "admin", period_s=1, failures=2),
        resources=resources(router.resources, RESOURCES),
        volumeMounts=[CONFIG_MOUNT, TEMPORARY_MOUNT, *mounts, *([TLS_MOUNT] if tls else [])],
        **_environment([*_redis(context), *environment]),
    )


def _common_arguments(context: RenderContext, drains: bool) -> list[str]:
    return [
        "--admin-host=0.0.0.0",
        f"--admin-port={ADMIN_PORT}",
        f"--discover={context.owner.namespace}/{replicas_service_name(context.name)}",
        f"--lame-duck-s={LAME_DUCK_S:g}",
        *([f"--drain-s={router_drain_s(context.pool):g}"] if drains else []),
        *key_arguments(context),
        "--log-json",
    ]


def _tls_arguments(context: RenderContext) -> list[str]:
    return [
        f"--replica-tls-ca={TLS_FOLDER}/ca.crt",
        f"--replica-tls-cert={TLS_FOLDER}/client.crt",
        f"--replica-tls-key={TLS_FOLDER}/client.key",
        f"--replica-tls-server-name={tls_server_name(context.name, context.owner.namespace)}",
    ]


def _environment(variables: list[Json]) -> Json:
    return {"env": variables} if variables else {}


def _redis(context: RenderContext) -> list[Json]:
    """Return the environment variable with the URL of the pool's Redis; none without its Secret."""
    secret = context.settings.redis_url_secret
    if secret is None:
        return []
    source = {"secretKeyRef": {"name": secret, "key": "url"}}
    return [{"name": "PENSTOCK_REDIS_URL", "valueFrom": source}]
