"""The engine of a replica's pod, by type.

It is an init container that keeps running (`restartPolicy: Always`). Kubernetes starts such a container
before the pod's main one and stops it after: so the sidecar finds an engine that serves, and on termination
drains while its engine still works, whatever image the engine is and however it takes a SIGTERM. It is the
last init container: what a `podTemplate` adds may be what the engine waits for, such as its weights. It
listens on the pod's address for the kubelet's probes; the NetworkPolicy keeps everybody else out, for a
request that comes around the sidecar is a request that nobody admitted.

`vllm` gets its scheduler beside it: vLLM's image stays as it is, an init container copies the plug-in into a
folder that both see, and PYTHONPATH names it. `openai` gets its arguments and nothing else. `simulated` is
ours.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from penstock_pool.engine_spec import GPU, EngineSpec
from penstock_pool.pod_spec import Resources

from penstock_operator.manifests.names import ENGINE_PORT
from penstock_operator.objects.containers import (
    CONFIG_FOLDER,
    CONFIG_MOUNT,
    ENGINE_KEY,
    MODEL_FOLDER,
    POOL_FILE,
    TELEMETRY_MOUNT,
    TELEMETRY_SOCKET,
    container,
    empty_folder,
    engine_key,
    probe,
    resources,
    time_model_source,
)
from penstock_operator.objects.render_context import RenderContext, UnsupportedPool
from penstock_operator.objects.rollout import ENGINE_STOP_S
from penstock_operator.objects.security_contexts import ENGINE_SECURITY

Json = dict[str, Any]

ENGINE = "engine"
CACHE_FOLDER = "/var/cache/engine"
"""Home of an engine of others: downloads and compiled kernels, for the pod's life."""

PLUGIN_SOURCE = "/plugin"
"""Where the plug-in's image has it."""

PLUGIN_FOLDER = "/opt/penstock"
SCHEDULER = "penstock_vllm.scheduler.PenstockScheduler"

TERMINATION_LOG = "/dev/termination-log"
"""Where Kubernetes reads why a container ended; where nothing stands there, in the end of its log."""

UNTIL_IT_LISTENS = "until grep -q '^SigCgt:.*[4-7c-f]...$' /proc/1/status; do sleep 0.2; done"
"""Waits until a container's first process catches SIGTERM (bit 14 of its mask).

Linux throws away what the first process of a container does not catch, and vLLM catches nothing while it is
imported: told to stop in those seconds it would load on, until the pod's grace period is over.
"""

MODEL_LOAD_S = 1800
"""Longest that an engine may take to download, load and compile its model."""

SIMULATED_RESOURCES: Json = {"requests": {"cpu": "50m", "memory": "192Mi"}}


@dataclass(frozen=True, slots=True)
class EngineContainer:
    """What an engine adds to a pod. init: containers that have to end before it starts."""

    container: Json
    init: tuple[Json, ...] = ()
    volumes: tuple[Json, ...] = field(default=())


def engine(context: RenderContext) -> EngineContainer:
    """The pool's engine. Raises UnsupportedPool where it has no image to run."""
    made = _TYPES[context.pool.spec.engine.type](context)
    if key := engine_key(context, ENGINE_KEY, "VLLM_API_KEY"):
        made.container["env"] = [*key, *made.container.get("env", [])]
    return made


def engine_last(template: Json) -> Json:
    """A replica's pod template whose engine starts after every other init container.

    Kubernetes starts init containers in order: the next one when a container that ends has ended, or when one
    that keeps running has started, which an engine has once its model is loaded.
    """
    containers = template["spec"]["initContainers"]
    ordered = sorted(containers, key=lambda each: isinstance(each, dict) and each.get("name") == ENGINE)
    return {**template, "spec": {**template["spec"], "initContainers": ordered}}


def _simulated(context: RenderContext) -> EngineContainer:
    spec = context.pool.spec.engine
    listen = ["--host", "0.0.0.0", "--port", str(ENGINE_PORT)]
    stop = ["--drain-s", f"{ENGINE_STOP_S / 2:g}"]
    temporary, its_mount = empty_folder("tmp", "/tmp", sizeLimit="64Mi")
    made = container(
        context,
        ENGINE,
        spec.image or context.settings.simulator_image,
        restartPolicy="Always",
        command=["penstock-engine"],
        args=["-f", POOL_FILE, *listen, "--telemetry", TELEMETRY_SOCKET, *stop, *spec.args],
        ports=[_PORT],
        startupProbe=probe("/health", ENGINE, period_s=1, failures=120),
        livenessProbe=_LIVENESS,
        resources=resources(spec.resources, SIMULATED_RESOURCES),
        volumeMounts=[
            CONFIG_MOUNT,
            TELEMETRY_MOUNT,
            its_mount,
        ],
    )
    return EngineContainer(made, volumes=(temporary,))


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
    served = ["--served-model-name", context.pool.spec.model.name]
    listen = ["--host", "0.0.0.0", "--port", str(ENGINE_PORT)]
    bounds = {
        "--tensor-parallel-size": spec.tensor_parallel_size,
        "--max-model-len": spec.max_model_len,
        "--max-num-batched-tokens": scheduling.max_batch_tokens,
        "--max-num-seqs": scheduling.max_running,
    }
    flags = [word for flag, value in bounds.items() for word in (flag, str(value))]
    made = _others(
        context,
        spec.image or context.settings.vllm_image,
        command=["vllm", "serve"],
        args=[_model(context), *served, *listen, *flags, "--scheduler-cls", SCHEDULER, *spec.args],
        resources=resources(_with_gpus(spec), {}),
        lifecycle={"preStop": {"exec": {"command": ["sh", "-c", UNTIL_IT_LISTENS]}}},
    )
    made.container["env"] += [{"name": "PYTHONPATH", "value": PLUGIN_FOLDER}, *_plugin_environment(context)]
    made.container["volumeMounts"] += [{**plugin_mount, "readOnly": True}, TELEMETRY_MOUNT, CONFIG_MOUNT]
    return EngineContainer(made.container, (copy,), (*made.volumes, plugin))


def _with_gpus(spec: EngineSpec) -> Resources:
    """The engine's resources, with as many GPUs as it spans where they name no device at all.

    A device is what a device plug-in advertises: a resource whose name has a domain.
    """
    if any("/" in name for name in (*spec.resources.limits, *spec.resources.requests)):
        return spec.resources
    limits = {**spec.resources.limits, GPU: str(spec.tensor_parallel_size)}
    return spec.resources.model_copy(update={"limits": limits})


def uses_gpus(container: Json) -> bool:
    """Whether a container asks for NVIDIA's GPUs, or for parts of them."""
    limits = container["resources"].get("limits") or {}
    vendor = GPU.partition("/")[0]
    return any(name.startswith(f"{vendor}/") and str(number) != "0" for name, number in limits.items())


def _plugin_environment(context: RenderContext) -> list[Json]:
    spec, scheduling = context.pool.spec.engine, context.pool.spec.scheduling
    told = {
        "PENSTOCK_POLICY": scheduling.policy,
        "PENSTOCK_TIME_MODEL": _time_model(context),
        "PENSTOCK_TELEMETRY": TELEMETRY_SOCKET,
        "PENSTOCK_AGING_S": f"{scheduling.aging_timeout_s:g}",
        "PENSTOCK_LAST_WORDS": TERMINATION_LOG,
    }
    if spec.speculation is not None:
        told["PENSTOCK_ACCEPTANCE"] = f"{spec.speculation.acceptance:g}"
    return [{"name": name, "value": value} for name, value in told.items()]


def _time_model(context: RenderContext) -> str:
    """A built-in's name, or where the measured one is mounted."""
    named = context.pool.spec.engine.time_model
    return f"{CONFIG_FOLDER}/{named}" if time_model_source(context) else named


def _openai(context: RenderContext) -> EngineContainer:
    spec = context.pool.spec.engine
    if spec.image is None:
        raise UnsupportedPool(
            "spec.engine.image: missing; an engine of type openai runs from the image named here"
        )
    return _others(context, spec.image, args=list(spec.args), resources=resources(spec.resources, {}))


def _others(context: RenderContext, image: str, **started: Any) -> EngineContainer:
    """An engine with somebody else's image: a home to write to, shared memory, its model."""
    cache, cache_mount = empty_folder("engine-cache", CACHE_FOLDER)
    shared, shared_mount = empty_folder("shared-memory", "/dev/shm", medium="Memory")
    temporary, its_mount = empty_folder("tmp", "/tmp")
    weights = _weights(context)
    made = container(
        context,
        ENGINE,
        image,
        securityContext=ENGINE_SECURITY,
        restartPolicy="Always",
        env=[{"name": name, "value": value} for name, value in _HOME.items()],
        ports=[_PORT],
        startupProbe=probe("/health", ENGINE, period_s=5, failures=MODEL_LOAD_S // 5),
        livenessProbe=_LIVENESS,
        volumeMounts=[cache_mount, shared_mount, its_mount, *([_MODEL_MOUNT] if weights else [])],
        **started,
    )
    return EngineContainer(made, volumes=(cache, shared, temporary, *weights))


def _weights(context: RenderContext) -> tuple[Json, ...]:
    """The volume with the weights, where they do not come from a hub."""
    source = context.pool.spec.model.source
    if source is None or source.hub is not None:
        return ()
    if source.image is not None:
        image = {"reference": source.image, "pullPolicy": context.settings.image_pull_policy}
        return ({"name": "model", "image": image},)
    claim = {"claimName": source.persistent_volume_claim, "readOnly": True}
    return ({"name": "model", "persistentVolumeClaim": claim},)


def _model(context: RenderContext) -> str:
    """What vLLM is to load: a folder, or a name on the hub."""
    model = context.pool.spec.model
    if model.source is None:
        return model.name
    return model.source.hub or MODEL_FOLDER


_PORT = {"name": ENGINE, "containerPort": ENGINE_PORT}
_MODEL_MOUNT = {"name": "model", "mountPath": MODEL_FOLDER, "readOnly": True}
_LIVENESS = probe("/health", ENGINE, period_s=10, failures=6)
_HOME = {
    "HOME": CACHE_FOLDER,
    "HF_HOME": f"{CACHE_FOLDER}/huggingface",
    "XDG_CACHE_HOME": f"{CACHE_FOLDER}/cache",
    "USER": "engine",  # who has no entry in /etc/passwd: libraries that ask for a name ask here first
}
_TYPES: dict[str, Callable[[RenderContext], EngineContainer]] = {
    "simulated": _simulated,
    "vllm": _vllm,
    "openai": _openai,
}
