"""The engine of a replica's pod, by engine type.

The engine is an init container that keeps running (`restartPolicy: Always`). Kubernetes starts such a
container before the pod's main container and stops it after: the sidecar finds a running engine, and on
termination it drains while the engine still works, whatever the engine's image does on SIGTERM. The engine is
the last init container, because those that a `podTemplate` adds may prepare it, by fetching weights for
example. It listens on the pod's address for the kubelet's probes. A NetworkPolicy blocks all other clients,
whose requests would bypass admission; with `answerPath: direct` it lets routers or Envoys in, and the engine
requires a ticket for an SLO and serves TLS with a certificate of its own. Envoys know no tickets, so behind
them the engine asks the sidecar about each request.

`vllm` gets Penstock's scheduler without a change to vLLM's image: an init container copies the plug-in into a
shared folder that PYTHONPATH names. `openai` gets its arguments and nothing else. `simulated` is Penstock's
own image.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from penstock_pool.engine_spec import GPU, EngineSpec, cache_arguments
from penstock_pool.pod_spec import Resources

from penstock_operator.manifests.names import ENGINE_PORT, tls_name
from penstock_operator.objects.containers import (
    CONFIG_FOLDER,
    CONFIG_MOUNT,
    ENGINE_KEY,
    MODEL_FOLDER,
    POOL_FILE,
    TELEMETRY_MOUNT,
    TELEMETRY_SOCKET,
    TLS_FOLDER,
    container,
    empty_folder,
    engine_key,
    liveness,
    probe,
    resources,
    time_model_source,
    tls_volume,
)
from penstock_operator.objects.render_context import RenderContext, UnsupportedPool
from penstock_operator.objects.rollout import ENGINE_STOP_S
from penstock_operator.objects.security_contexts import ENGINE_SECURITY

Json = dict[str, Any]

ENGINE = "engine"
CACHE_FOLDER = "/var/cache/engine"
"""HOME of a third-party engine: downloads and compiled kernels, for the life of the pod."""

PLUGIN_SOURCE = "/plugin"
"""Path of the plug-in in its image."""

PLUGIN_FOLDER = "/opt/penstock"
SCHEDULER = "penstock_vllm.scheduler.PenstockScheduler"
MIDDLEWARE = "penstock_vllm.gateway_middleware.SidecarAdmission"
"""Asks the sidecar about requests of gateways."""

KEEP_ALIVE_S = 75
"""Time after which an engine closes an idle connection of a gateway, which closes it before."""

TERMINATION_LOG = "/dev/termination-log"
"""Path of the termination message. If the file is empty, Kubernetes uses the end of the container's log."""

WAIT_FOR_SIGTERM_HANDLER = "until grep -q '^SigCgt:.*[4-7c-f]...$' /proc/1/status; do sleep 0.2; done"
"""Shell command that waits until a container's first process catches SIGTERM (bit 14 of its signal mask).

Linux ignores signals that a container's first process does not catch, and vLLM catches none while it is being
imported. Without this wait, an engine that is stopped in those seconds would continue to load until the
end of the pod's grace period.
"""

MODEL_LOAD_S = 1800
"""Longest start of an engine in seconds: download, load and compile the model."""

TLS_ENTRIES = ("engine.crt", "engine.key")
"""Entries of the TLS Secret that an engine needs."""

TLS_ENVIRONMENT = {"WATCHFILES_FORCE_POLLING": "true"}
"""Environment with which vLLM's `--enable-ssl-refresh` reads every renewal.

By default its watch ends when the first version of a file is removed, as Kubernetes does at each renewal.
"""

ENGINE_TLS_MOUNT: Json = {"name": "engine-tls", "mountPath": TLS_FOLDER, "readOnly": True}

SIMULATED_RESOURCES: Json = {"requests": {"cpu": "50m", "memory": "192Mi"}}


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """The parts that an engine adds to a pod. init: containers that must end before it starts."""

    container: Json
    init: tuple[Json, ...] = ()
    volumes: tuple[Json, ...] = ()


def engine(context: RenderContext) -> EngineContainer:
    """Return the pool's engine. Raises UnsupportedPool if it has no image."""
    result = _BY_TYPE[context.pool.spec.engine.type](context)
    if key := engine_key(context, ENGINE_KEY, "VLLM_API_KEY"):
        result.container["env"] = [*key, *result.container.get("env", [])]
    return _with_tls(context, result) if context.engine_tls else result


def _with_tls(context: RenderContext, result: EngineContainer) -> EngineContainer:
    """Return the engine with TLS. It requires no certificate of clients, because the kubelet has none."""
    changed = result.container
    changed["args"] = [*_TLS, *changed["args"]]
    changed["env"] = [*changed.get("env", []), *_env(TLS_ENVIRONMENT)]
    changed["volumeMounts"] = [*changed["volumeMounts"], ENGINE_TLS_MOUNT]
    volume = tls_volume(tls_name(context.name), TLS_ENTRIES, ENGINE_TLS_MOUNT)
    return replace(result, volumes=(*result.volumes, volume))


def engine_last(template: Json) -> Json:
    """Return the pod template with the engine moved after all other init containers.

    Kubernetes starts init containers in order. The next one starts when the previous one has ended or, if it
    keeps running, has started; an engine has started once its model is loaded.
    """
    containers = template["spec"]["initContainers"]
    if not isinstance(containers, list):
        return template
    ordered = sorted(containers, key=lambda each: isinstance(each, dict) and each.get("name") == ENGINE)
    return {**template, "spec": {**template["spec"], "initContainers": ordered}}


def _simulated(context: RenderContext) -> EngineContainer:
    spec = context.pool.spec.engine
    listen = ["--host", "0.0.0.0", "--port", str(ENGINE_PORT)]
    stop = ["--drain-s", f"{ENGINE_STOP_S / 2:g}"]
    temporary, temporary_mount = empty_folder("tmp", "/tmp", sizeLimit="64Mi")
    result = container(
        context,
        ENGINE,
        spec.image or context.settings.simulator_image,
        restartPolicy="Always",
        command=["penstock-engine"],
        args=[
            "-f",
            POOL_FILE,
            *listen,
            "--telemetry",
            TELEMETRY_SOCKET,
            *stop,
            *(["--gateway-requests"] if context.engine_behind_gateway else []),
            *spec.args,
        ],
        ports=[_PORT],
        startupProbe=probe("/health", ENGINE, period_s=1, failures=120, tls=context.engine_tls),
        livenessProbe=_liveness(context),
        resources=resources(spec.resources, SIMULATED_RESOURCES),
        volumeMounts=[CONFIG_MOUNT, TELEMETRY_MOUNT, temporary_mount],
    )
    return EngineContainer(result, volumes=(temporary,))


def _vllm(context: RenderContext) -> EngineContainer:
    spec, scheduling = context.pool.spec.engine, context.pool.spec.scheduling
    plugin, plugin_mount = empty_folder("plugin", PLUGIN_FOLDER)
    copy = container(
        context,
        "vllm-plugin",
        context.settings.vllm_plugin_image,
        command=["cp", "-r", f"{PLUGIN_SOURCE}/.", PLUGIN_FOLDER],
        resources={"requests": {"cpu": "50m", "memory": "64Mi"}},
        volumeMounts=[plugin_mount],
    )
    name_flags = ["--served-model-name", context.pool.spec.model.name]
    listen = ["--host", "0.0.0.0", "--port", str(ENGINE_PORT)]
    limits = {
        "--tensor-parallel-size": spec.tensor_parallel_size,
        "--max-model-len": spec.max_model_len,
        "--max-num-batched-tokens": scheduling.max_batch_tokens,
        "--max-num-seqs": scheduling.max_running,
    }
    flags = [word for flag, value in limits.items() for word in (flag, str(value))]
    cache_flags = cache_arguments(spec)
    result = _third_party(
        context,
        spec.image or context.settings.vllm_image,
        command=["vllm", "serve"],
        args=[
            _model(context),
            *name_flags,
            *listen,
            *flags,
            "--scheduler-cls",
            SCHEDULER,
            *(["--middleware", MIDDLEWARE] if context.engine_behind_gateway else []),
            *cache_flags,
            *spec.args,
        ],
        resources=resources(_with_gpus(spec), {}),
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", WAIT_FOR_SIGTERM_HANDLER]}}},
    )
    result.container["env"] += _env({"PYTHONPATH": PLUGIN_FOLDER, **_plugin_environment(context)})
    result.container["volumeMounts"] += [{**plugin_mount, "readOnly": True}, TELEMETRY_MOUNT, CONFIG_MOUNT]
    return EngineContainer(result.container, (copy,), (*result.volumes, plugin))


def _with_gpus(spec: EngineSpec) -> Resources:
    """Return the engine's resources. If they name no device, one GPU per tensor-parallel rank is added.

    Devices are resources of device plug-ins, whose names have a domain.
    """
    if any("/" in name for name in (*spec.resources.limits, *spec.resources.requests)):
        return spec.resources
    limits = {**spec.resources.limits, GPU: str(spec.tensor_parallel_size)}
    return spec.resources.model_copy(update={"limits": limits})


def uses_gpus(manifest: Json) -> bool:
    """Return whether a container requests NVIDIA GPUs or partitions of them."""
    limits = manifest["resources"].get("limits") or {}
    vendor = GPU.partition("/")[0]
    return any(name.startswith(f"{vendor}/") and str(number) != "0" for name, number in limits.items())


def _plugin_environment(context: RenderContext) -> dict[str, str]:
    spec, scheduling = context.pool.spec.engine, context.pool.spec.scheduling
    variables = {
        "PENSTOCK_POLICY": scheduling.policy,
        "PENSTOCK_TIME_MODEL": _time_model(context),
        "PENSTOCK_TELEMETRY": TELEMETRY_SOCKET,
        "PENSTOCK_AGING_S": f"{scheduling.aging_timeout_s:g}",
        "PENSTOCK_TERMINATION_LOG": TERMINATION_LOG,
    }
    if spec.direct:
        variables["PENSTOCK_TICKETS"] = "required"
    if context.engine_behind_gateway:
        variables["VLLM_HTTP_TIMEOUT_KEEP_ALIVE"] = str(KEEP_ALIVE_S)
    if spec.speculation is not None:
        variables["PENSTOCK_ACCEPTANCE"] = f"{spec.speculation.acceptance:g}"
    return variables


def _env(variables: Mapping[str, str]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in variables.items()]


def _time_model(context: RenderContext) -> str:
    """Return the name of a built-in time model, or the path at which the measured one is mounted."""
    time_model = context.pool.spec.engine.time_model
    return f"{CONFIG_FOLDER}/{time_model}" if time_model_source(context) else time_model


def _openai(context: RenderContext) -> EngineContainer:
    spec = context.pool.spec.engine
    if spec.image is None:
        raise UnsupportedPool(
            "spec.engine.image: missing; an engine of type openai runs from the image named here"
        )
    return _third_party(context, spec.image, args=list(spec.args), resources=resources(spec.resources, {}))


def _third_party(context: RenderContext, image: str, **fields: Any) -> EngineContainer:
    """Return an engine with a third-party image: writable home, shared memory, model."""
    cache, cache_mount = empty_folder("engine-cache", CACHE_FOLDER)
    shared, shared_mount = empty_folder("shared-memory", "/dev/shm", medium="Memory")
    temporary, temporary_mount = empty_folder("tmp", "/tmp")
    weights = _weights(context)
    result = container(
        context,
        ENGINE,
        image,
        securityContext=ENGINE_SECURITY,
        restartPolicy="Always",
        env=_env(_HOME_ENVIRONMENT),
        ports=[_PORT],
        startupProbe=probe("/health", ENGINE, period_s=5, failures=MODEL_LOAD_S // 5, tls=context.engine_tls),
        livenessProbe=_liveness(context),
        volumeMounts=[cache_mount, shared_mount, temporary_mount, *([_MODEL_MOUNT] if weights else [])],
        **fields,
    )
    return EngineContainer(result, volumes=(cache, shared, temporary, *weights))


def _liveness(context: RenderContext) -> Json:
    return liveness("/health", ENGINE, tls=context.engine_tls)


def _weights(context: RenderContext) -> tuple[Json, ...]:
    """Return the volume with the weights; empty if they are downloaded from a hub."""
    source = context.pool.spec.model.source
    if source is None or source.hub is not None:
        return ()
    if source.image is not None:
        image = {"reference": source.image, "pullPolicy": context.settings.image_pull_policy}
        return ({"name": "model", "image": image},)
    claim = {"claimName": source.persistent_volume_claim, "readOnly": True}
    return ({"name": "model", "persistentVolumeClaim": claim},)


def _model(context: RenderContext) -> str:
    """Return the model argument of vLLM: a folder, or a name on the hub."""
    model = context.pool.spec.model
    if model.source is None:
        return model.name
    return model.source.hub or MODEL_FOLDER


_PORT = {"name": ENGINE, "containerPort": ENGINE_PORT}
_TLS = [
    f"--ssl-certfile={TLS_FOLDER}/engine.crt",
    f"--ssl-keyfile={TLS_FOLDER}/engine.key",
    "--enable-ssl-refresh",
]
_MODEL_MOUNT = {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True}
_HOME_ENVIRONMENT = {
    "HOME": CACHE_FOLDER,
    "HF_HOME": f"{CACHE_FOLDER}/huggingface",
    "XDG_CACHE_HOME": f"{CACHE_FOLDER}/cache",
    "USER": "engine",  # for libraries that need a user name: /etc/passwd has no entry for the uid
}
_BY_TYPE: dict[str, Callable[[RenderContext], EngineContainer]] = {
    "simulated": _simulated,
    "vllm": _vllm,
    "openai": _openai,
}
