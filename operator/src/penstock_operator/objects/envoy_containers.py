"""Envoy and its picker in one pod.

The picker is the main container and Envoy an init container that keeps running (`restartPolicy: Always`), so
that Kubernetes starts Envoy first and stops it last. The picker gets SIGTERM first and drains Envoy before it
ends. Envoy closes all streams on SIGTERM, which it gets after that.

They share a folder with the file of endpoints, which the picker writes and Envoy watches, and Envoy's
administration socket. Envoy does not start without the file, so an init container writes an empty one. Envoy
parses untrusted requests, so it mounts neither the pool file nor API keys nor the account's token.
"""

from typing import Any, NamedTuple

from penstock_runtime.envoy.bootstrap import FILE

from penstock_operator.manifests.names import ENVOY_PORT, PICKER_PORT, ROUTER_PORT, envoy_name
from penstock_operator.objects.containers import LIVENESS_GRACE, READABLE, TLS_MOUNT, container, empty_folder
from penstock_operator.objects.envoy_configuration import ENVOY_FOLDER, GATEWAY_FOLDER, envoy_settings
from penstock_operator.objects.front_container import CERTIFICATE_MOUNT, front_container
from penstock_operator.objects.picker_container import PICKER
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.service_accounts import TOKEN_MOUNT, token_volume
from penstock_operator.objects.services import api_port

Json = dict[str, Any]

ENVOY = "envoy"
THREADS = 2
"""Worker threads of one Envoy. Each forwards about 50,000 tokens per second; for more, add Envoys."""

RESOURCES: Json = {"requests": {"cpu": "200m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""Default resources of Envoy, for 1,000 open streams; `podTemplate` overrides them by container name."""

INIT_RESOURCES: Json = {"requests": {"cpu": "50m", "memory": "64Mi"}, "limits": {"memory": "128Mi"}}


class EnvoyContainers(NamedTuple):
    """The containers and volumes of a pod."""

    init: tuple[Json, ...]
    main: Json
    volumes: tuple[Json, ...]


def envoy_containers(context: RenderContext) -> EnvoyContainers:
    """Return Envoy and its picker."""
    shared, shared_mount = empty_folder("gateway", GATEWAY_FOLDER, sizeLimit="16Mi")
    source = {"name": envoy_name(context.name), "defaultMode": READABLE}
    configuration = {"name": "envoy", "configMap": source}
    init = (_first_endpoints(context, shared_mount), _envoy(context, shared_mount))
    return EnvoyContainers(init, _picker(context, shared_mount), (shared, configuration, token_volume()))


def _first_endpoints(context: RenderContext, shared: Json) -> Json:
    return container(
        context,
        "endpoints",
        context.pool.spec.router.image or context.settings.picker_image,
        command=["python", "-m", "penstock_picker.first_endpoints"],
        args=[envoy_settings(context).endpoints_file],
        resources=INIT_RESOURCES,
        volumeMounts=[shared],
    )


def _envoy(context: RenderContext, shared: Json) -> Json:
    mounts = [{"name": "envoy", "mountPath": ENVOY_FOLDER, "readOnly": True}, shared]
    if context.pool.spec.router.tls is not None:
        mounts.append(CERTIFICATE_MOUNT)
    if context.settings.tls:
        mounts.append(TLS_MOUNT)
    readiness = {"httpGet": {"path": "/ready", "port": ENVOY}, "periodSeconds": 1, "timeoutSeconds": 5}
    liveness = {"tcpSocket": {"port": ENVOY}, "periodSeconds": 10, "timeoutSeconds": 5}
    return container(
        context,
        ENVOY,
        context.settings.envoy_image,
        restartPolicy="Always",
        command=["envoy"],
        args=[
            "-c",
            f"{ENVOY_FOLDER}/{FILE}",
            "--concurrency",  # Envoy takes no value after an equals sign
            str(THREADS),
            "--disable-hot-restart",
            "--log-level",
            "warning",
            "--file-flush-interval-msec",
            "500",
        ],
        ports=[
            {"name": api_port(context).name, "containerPort": ROUTER_PORT},
            {"name": ENVOY, "containerPort": ENVOY_PORT},
        ],
        startupProbe={**readiness, "failureThreshold": 60},
        livenessProbe={**liveness, "failureThreshold": 6, **LIVENESS_GRACE},
        readinessProbe={**readiness, "failureThreshold": 2},
        resources=RESOURCES,
        volumeMounts=mounts,
    )


def _picker(context: RenderContext, shared: Json) -> Json:
    settings = envoy_settings(context)
    return front_container(
        context,
        PICKER,
        context.settings.picker_image,
        [
            f"--host={settings.picker.host}",
            f"--ext-authz-port={PICKER_PORT}",
            f"--endpoints-file={settings.endpoints_file}",
            f"--envoy-admin={settings.admin_socket}",
        ],
        mounts=[shared, TOKEN_MOUNT],
    )
