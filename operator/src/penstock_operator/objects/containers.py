"""What every container of ours has: image, security, a place for temporary files, its last words kept."""

from typing import Any

from penstock_pool.pod_spec import Resources
from penstock_pool.time_models import SUFFIX

from penstock_operator.objects.render_context import RenderContext
from penstock_operator.objects.security_contexts import OWN_SECURITY

Json = dict[str, Any]

CONFIG_FOLDER = "/etc/penstock"
POOL_FILE = f"{CONFIG_FOLDER}/pool.yaml"
TLS_FOLDER = "/etc/penstock-tls"
MODEL_FOLDER = "/model"
"""Where weights from a claim or an image are, read-only."""

TELEMETRY_FOLDER = "/run/penstock"
TELEMETRY_SOCKET = f"{TELEMETRY_FOLDER}/telemetry.sock"

CONFIG_MOUNT: Json = {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}
TLS_MOUNT: Json = {"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True}
TELEMETRY_MOUNT: Json = {"name": "telemetry", "mountPath": TELEMETRY_FOLDER}
TIME_MODEL_ENTRY = "time-model.json"
"""The entry of a ConfigMap that holds a measured time model."""

ENGINE_KEY, ENGINE_KEY_ENTRY = "PENSTOCK_ENGINE_API_KEY", "api-key"
"""The variable that takes the engine's API key, and the entry of the Secret that has it."""

READABLE = 0o440
"""Readable only by the pod's user."""


def container(context: RenderContext, name: str, image: str, **fields: Any) -> Json:
    """A container with what is common to all; `fields` beside it or instead.

    What it says last on stderr before it dies is kept in the pod's status, where people and the pool's
    conditions find it.
    """
    return {
        "name": name,
        "image": image,
        "imagePullPolicy": context.settings.image_pull_policy,
        "securityContext": OWN_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **fields,
    }


def engine_key(context: RenderContext, *variables: str) -> list[Json]:
    """Environment variables with the API key between sidecar and engine; none where the pool names no key."""
    key = context.pool.spec.engine.api_key
    if key is None:
        return []
    source = {"secretKeyRef": {"name": key.secret, "key": ENGINE_KEY_ENTRY}}
    return [{"name": variable, "valueFrom": source} for variable in variables]


def resources(given: Resources, default: Json) -> Json:
    """As the pool has them; requests and limits that it leaves out are the default's."""
    told = given.model_dump(exclude_defaults=True)
    return {
        part: told.get(part, default.get(part))
        for part in ("limits", "requests")
        if told or default.get(part)
    }


def probe(path: str, port: str, period_s: int, failures: int) -> Json:
    """Asks by HTTP. Five seconds for an answer: a busy process is slow, and not dead."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def empty_folder(name: str, path: str, **options: Any) -> tuple[Json, Json]:
    """A volume that lives as long as the pod, and its mount."""
    return {"name": name, "emptyDir": options}, {"name": name, "mountPath": path}


def config_volume(config_map: str, *more: Json) -> Json:
    """The pool file, and what else stands in its folder: one volume, for none is mounted in another."""
    sources = [{"configMap": {"name": config_map}}, *more]
    return {"name": CONFIG_MOUNT["name"], "projected": {"sources": sources, "defaultMode": READABLE}}


def time_model_source(context: RenderContext) -> tuple[Json, ...]:
    """Of the configuration's volume: the measured time model, where the pool names one and not a built-in."""
    named = context.pool.spec.engine.time_model
    if not named.endswith(SUFFIX):
        return ()
    items = [{"key": TIME_MODEL_ENTRY, "path": named}]
    return ({"configMap": {"name": named.removesuffix(SUFFIX), "items": items}},)


def tls_volume(secret: str, entries: tuple[str, ...]) -> Json:
    """These entries of the TLS Secret and no others."""
    items = [{"key": entry, "path": entry} for entry in entries]
    shown = {"secretName": secret, "items": items, "defaultMode": READABLE}
    return {"name": TLS_MOUNT["name"], "secret": shown}


def pull_secrets(context: RenderContext) -> Json:
    """The part of a pod's spec that says how to fetch images; empty where there is nothing to say."""
    names = context.settings.image_pull_secrets
    return {"imagePullSecrets": [{"name": name} for name in names]} if names else {}
