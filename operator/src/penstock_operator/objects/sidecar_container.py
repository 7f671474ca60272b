"""The sidecar: the main container of a replica's pod.

The engine has no readiness probe of its own: the sidecar probes it every second and reports it in `/ready`.
"""

import math
from typing import Any

from penstock_pool.engine_spec import AUTO

from penstock_operator.manifests.names import (
    ENGINE_PORT,
    METRICS_PORT,
    REPLICA_HTTP_PORT,
    REPLICA_PORT,
    engine_server_name,
)
from penstock_operator.objects.containers import (
    CONFIG_MOUNT,
    ENGINE_KEY,
    POOL_FILE,
    TELEMETRY_MOUNT,
    TELEMETRY_SOCKET,
    TLS_FOLDER,
    TLS_MOUNT,
    container,
    engine_key,
    liveness,
    probe,
)
from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.rollout import replica_drain_s

Json = dict[str, Any]

SIDECAR = "sidecar"
TEMPORARY = "sidecar-tmp"
SERVER_ENTRIES = ("ca.crt", "tls.crt", "tls.key")
"""Entries of the TLS Secret that a replica needs."""

START_TIMEOUT_S = 120
"""Seconds that a sidecar may take to start."""

INSECURE_HTTP = "--http-insecure"
"""Argument of a sidecar that serves HTTP without TLS, for Gateways, which have no certificate of the pool."""

RESOURCES: Json = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
"""Default resources, enough for 100 requests/s; `podTemplate` overrides them by container name."""


def sidecar(context: RenderContext) -> Json:
    """Return the container. Its volumes belong to the pod."""
    tls = context.settings.tls
    mounts = [CONFIG_MOUNT, TELEMETRY_MOUNT, {"name": TEMPORARY, "mountPath": "/tmp"}]
    return container(
        context,
        SIDECAR,
        context.settings.sidecar_image,
        command=["penstock-sidecar"],
        args=[*_arguments(context), *(_TLS if tls else ["--insecure"])],
        env=[
            {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            *engine_key(context, ENGINE_KEY),
        ],
        ports=[
            {"name": "replica", "containerPort": REPLICA_PORT},
            {"name": "metrics", "containerPort": METRICS_PORT},
            *([{"name": "http", "containerPort": REPLICA_HTTP_PORT}] if context.gateway.http else []),
        ],
        startupProbe=probe("/health", "metrics", period_s=1, failures=_start_timeout_s(context)),
        livenessProbe=liveness("/health", "metrics"),
        readinessProbe=probe("/ready", "metrics", period_s=1, failures=2),
        resources=RESOURCES,
        volumeMounts=[*mounts, TLS_MOUNT] if tls else mounts,
    )


def _start_timeout_s(context: RenderContext) -> int:
    """Return the longest start in seconds: compiling the policy, and measuring the engine if needed."""
    engine = context.pool.spec.engine
    return START_TIMEOUT_S + (math.ceil(engine.profile_timeout_s) if engine.time_model == AUTO else 0)


def _arguments(context: RenderContext) -> list[str]:
    return [
        "-f",
        POOL_FILE,
        "--name=$(POD_NAME)",
        f"--listen=0.0.0.0:{REPLICA_PORT}",
        *_engine_arguments(context),
        f"--telemetry={TELEMETRY_SOCKET}",
        "--metrics-host=0.0.0.0",
        f"--metrics-port={METRICS_PORT}",
        f"--drain-s={replica_drain_s(context.pool):g}",
        "--log-json",
        *_http_arguments(context),
    ]


def _engine_arguments(context: RenderContext) -> list[str]:
    if not context.engine_tls:
        return [f"--engine=http://127.0.0.1:{ENGINE_PORT}"]
    return [
        f"--engine=https://127.0.0.1:{ENGINE_PORT}",
        f"--engine-tls-ca={TLS_FOLDER}/ca.crt",
        f"--engine-tls-server-name={engine_server_name(context.name, context.owner.namespace)}",
    ]


def _http_arguments(context: RenderContext) -> list[str]:
    if not context.gateway.http:
        return []
    insecure = [INSECURE_HTTP] if context.gateway.serves == "inferencePool" else []
    return [f"--http-port={REPLICA_HTTP_PORT}", *insecure]


_TLS = [
    f"--tls-cert={TLS_FOLDER}/tls.crt",
    f"--tls-key={TLS_FOLDER}/tls.key",
    f"--tls-client-ca={TLS_FOLDER}/ca.crt",
]
