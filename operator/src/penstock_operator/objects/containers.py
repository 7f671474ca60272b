"""Common parts of all containers: image, security context, temporary files, termination message."""

from typing import Any

from penstock_pool.pod_spec import Resources
from penstock_pool.time_models import SUFFIX

from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.security_contexts import PENSTOCK_SECURITY

Json = dict[str, Any]

CONFIG_FOLDER = "/etc/penstock"
POOL_FILE = f"{CONFIG_FOLDER}/pool.yaml"
TLS_FOLDER = "/etc/penstock-tls"
MODEL_FOLDER = "/model"
"""Mount path of weights from a claim or an image; read-only."""

TELEMETRY_FOLDER = "/run/penstock"
TELEMETRY_SOCKET = f"{TELEMETRY_FOLDER}/telemetry.sock"

CONFIG_MOUNT: Json = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
TLS_MOUNT: Json = {"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}
TELEMETRY_MOUNT: Json = {"name": "telemetry", "mountPath": TELEMETRY_FOLDER}
TIME_MODEL_ENTRY = "time-model.json"
"""Key of the measured time model in its ConfigMap."""

ENGINE_KEY, ENGINE_KEY_ENTRY = "PENSTOCK_ENGINE_API_KEY", "api-key"
"""Environment variable of the engine's API key, and key of its Secret's entry."""

LIVENESS_GRACE: Json = {"terminationGracePeriodSeconds": 10}
"""Field of all liveness probes: seconds from SIGTERM to SIGKILL of a container that does not answer.

Such a container does not drain either. By default it would have the grace period of its pod, which is that of
the longest answer, and the requests at the container would wait for as long.
"""

READABLE = 0o440
"""File mode: readable only by the pod's user."""


def container(context: RenderContext, name: str, image: str, **fields: Any) -> Json:
    """Return a container with the common parts; `fields` are added or override them.

    If a container fails, the pod's status keeps the end of its log (its termination message), where the
    pool's conditions find the cause.
    """
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": context.settings.image_pull_policy,
        "securityContext": PENSTOCK_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **fields,
    }


def engine_key(context: RenderContext, *variables: str) -> list[Json]:
    """Return the environment variables with the engine's API key; none if the pool names no key."""
    key = context.pool.spec.engine.api_key
    if key is None:
        return []
    source = {"secretKeyRef": {"name": key.secret, "key": ENGINE_KEY_ENTRY}}
    return [{"name": variable, "valueFrom": source} for variable in variables]


def resources(specified: Resources, default: Json) -> Json:
    """Return the pool's resources; missing requests and limits are taken from the default."""
    given = specified.model_dump(exclude_defaults=True)
    return {
        part: given.get(part, default.get(part))
        for part in ("limits", "requests")
        if given or default.get(part)
    }


def probe(path: str, port: str, period_s: int, failures: int, *, tls: bool = False) -> Json:
    """Return an HTTP probe. Its timeout is five seconds, because a busy process is slow but not dead.

    tls: whether the port serves TLS. The kubelet presents no certificate and verifies none.
    """
    return {
        "httpGet": {"path": path, "port": port, **({"scheme": "HTTPS"} if tls else {})},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def liveness(path: str, port: str, *, tls: bool = False) -> Json:
    """Return an HTTP probe after whose failures the container is restarted."""
    return {**probe(path, port, period_s=10, failures=6, tls=tls), **LIVENESS_GRACE}


def empty_folder(name: str, path: str, **options: Any) -> tuple[Json, Json]:
    """Return an emptyDir volume and its mount."""
    return {"name": name, "emptyDir": options}, {"name": name, "mountPath": path}


def config_volume(config_map: str, *more: Json) -> Json:
    """Return one projected volume with the pool file and further files, because volume mounts do not nest."""
    sources = [{"configMap": {"name": config_map}}, *more]
    return {"name": CONFIG_MOUNT["name"], "projected": {"sources": sources, "defaultMode": READABLE}}


def time_model_source(context: RenderContext) -> tuple[Json, ...]:
    """Return the source of the measured time model for that volume; empty for a built-in model."""
    time_model = context.pool.spec.engine.time_model
    if not time_model.endswith(SUFFIX):
        return ()
    items = [{"key": TIME_MODEL_ENTRY, "path": time_model}]
    return ({"configMap": {"name": time_model.removesuffix(SUFFIX), "items": items}},)


def tls_volume(secret: str, entries: tuple[str, ...], mount: Json = TLS_MOUNT) -> Json:
    """Return a volume with only these entries of the TLS Secret. mount: the volume's mount."""
    items = [{"key": entry, "path": entry} for entry in entries]
    source = {"secretName": secret, "items": items, "defaultMode": READABLE}
    return {"name": mount["name"], "secret": source}
