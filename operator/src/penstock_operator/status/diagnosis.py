"""Diagnoses why a pool does not run, from Kubernetes' own reports.

A pool can be valid and still not run: an image cannot be pulled, no node has the GPU, a claim does not exist.
Kubernetes reports the reason in many places: conditions of pods, states of containers, Events of
controllers. This module reads all of them and returns `PoolProblem`s: a cause as a type, and one sentence
that says where, what, and how to correct it.

Pure: all observations are arguments. No problem is remembered, so it disappears with its cause.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from penstock_runtime.exit_reason import reason_line

from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import Component
from penstock_operator.manifests.pods import component_of, pods_of
from penstock_operator.manifests.timestamps import unix_s


class Cause(StrEnum):
    """Why a pool is degraded; the reason of the condition and of the Event."""

    SPEC_INVALID = "SpecInvalid"  # the operator cannot read the pool
    CANNOT_RUN = "CannotRun"  # the operator can read the pool and cannot run it
    HOST_TAKEN = "HostTaken"  # an older pool has the ingress host
    ROUTE_REJECTED = "RouteRejected"  # the Gateway rejects the pool's HTTPRoute
    NAME_TAKEN = "NameTaken"  # an object of a needed name has another owner
    API_REFUSED = "ApiRefused"  # the API server rejects an object
    QUOTA_EXCEEDED = "QuotaExceeded"  # a ResourceQuota allows no more pods
    PODS_REFUSED = "PodsRefused"  # pods are rejected for another reason
    SECRET_MISSING = "SecretMissing"  # a Secret that pods mount does not exist
    CONFIG_MAP_MISSING = "ConfigMapMissing"
    CLAIM_MISSING = "ClaimMissing"  # the PersistentVolumeClaim of the weights does not exist
    CLAIM_PENDING = "ClaimPending"  # the claim has no volume yet
    VOLUME_NOT_MOUNTED = "VolumeNotMounted"
    GPU_MISSING = "GpuMissing"  # no node has enough free GPUs
    UNSCHEDULABLE = "Unschedulable"  # no node fits for another reason
    IMAGE_MISSING = "ImageMissing"  # the image cannot be pulled
    CONTAINER_REFUSED = "ContainerRefused"  # the node cannot create the container
    OUT_OF_MEMORY = "OutOfMemory"  # a container was killed at its memory limit
    ENGINE_OUT_OF_MEMORY = "EngineOutOfMemory"  # the model or its KV cache exceeds the GPU's memory
    ENGINE_CRASHING = "EngineCrashing"
    ENGINE_NOT_READY = "EngineNotReady"  # the engine runs and fails its probes
    SIDECAR_CRASHING = "SidecarCrashing"
    ROUTER_CRASHING = "RouterCrashing"
    GATEWAY_CRASHING = "GatewayCrashing"  # an Envoy or its picker
    EVICTED = "Evicted"  # the node evicted a pod


SPEC_NOT_IN_EFFECT = frozenset(
    {
        Cause.SPEC_INVALID,
        Cause.CANNOT_RUN,
        Cause.HOST_TAKEN,
        Cause.ROUTE_REJECTED,
        Cause.NAME_TAKEN,
        Cause.API_REFUSED,
    }
)
"""Causes for which part of the spec is not in effect, even if all pods are ready."""

ROUTE_CAUSES = frozenset({Cause.HOST_TAKEN, Cause.ROUTE_REJECTED})
"""Causes that block clients outside the cluster but keep no pod from running."""

CAUSE_ORDER = {cause: rank for rank, cause in enumerate(Cause)}
"""Order of causes: a later one is often a consequence of an earlier one."""


@dataclass(frozen=True, slots=True)
class PoolProblem:
    """A problem of a pool. component: the one whose pods do not run because of it; None: both, or neither."""

    cause: Cause
    message: str
    component: Component | None = None


SLOW_START_S = 120.0
"""Seconds after which a running engine that was never ready is reported; large models load for minutes."""

_IMAGE_REASONS = {
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "ErrImageInspect",
}
_CREATE_REASONS = {"CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
_MOUNT_REASONS = {"FailedMount", "FailedAttachVolume"}
_NOT_STARTED_REASONS = {"ContainerCreating", "PodInitializing"}
"""Waiting reasons of containers whose pod has no volumes yet, or that wait for another container."""

_EXIT_CODE_MESSAGES = {
    137: "killed: its node had no memory left, or it had stopped answering its liveness probe"
}
"""Exit codes of processes that end without a message."""

_OUT_OF_MEMORY_MESSAGES = (  # messages of torch, and of vLLM 0.32 when it allocates its KV cache
    "out of memory",
    "OutOfMemoryError",
    "No available memory for the cache blocks",
    "larger than the available KV cache memory",
    "less than requested memory for kv",
    "less than desired GPU memory utilization",
)
_CRASH_CAUSES = {
    "sidecar": Cause.SIDECAR_CRASHING,
    "router": Cause.ROUTER_CRASHING,
    **dict.fromkeys(("endpoints", "envoy", "picker"), Cause.GATEWAY_CRASHING),
}


def diagnose(
    children: Sequence[Manifest],
    events: Sequence[Manifest],
    reference_problems: Sequence[PoolProblem],
    now_s: float,
) -> tuple[PoolProblem, ...]:
    """Return all problems, root causes first, one per cause and component.

    events: Warnings about the pool's StatefulSet and pods. reference_problems: of missing objects.
    now_s: Unix time, from which slow starts are recognized.
    """
    found = [*reference_problems, *_workload_problems(children), *_event_problems(children, events)]
    for pod in pods_of(children):
        found += pod_problems(pod, now_s)
    by_cause: dict[tuple[Cause, Component | None], PoolProblem] = {}
    for problem in found:
        by_cause.setdefault((problem.cause, problem.component), problem)
    return tuple(sorted(by_cause.values(), key=lambda problem: CAUSE_ORDER[problem.cause]))


def pod_problems(pod: Manifest, now_s: float) -> list[PoolProblem]:
    """Return the problems in one pod's status."""
    status, name, component = pod.get("status", {}), pod["metadata"]["name"], component_of(pod)
    if status.get("phase") == "Failed":
        message = f"{name}: {status.get('reason', 'failed')}: {status.get('message', 'no message')}"
        return [PoolProblem(Cause.EVICTED, message, component)]
    unscheduled = [
        condition
        for condition in status.get("conditions", ())
        if condition["type"] == "PodScheduled" and condition["status"] == "False"
    ]
    if unscheduled:
        return [_scheduling_problem(name, unscheduled[0].get("message", "no node fits"), component)]
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    found = (_container_problem(name, container, component, now_s) for container in containers)
    return [problem for problem in found if problem is not None]


def _scheduling_problem(name: str, message: str, component: Component | None) -> PoolProblem:
    if "unbound immediate PersistentVolumeClaims" in message:
        return PoolProblem(Cause.CLAIM_PENDING, f"{name}: {message}", component)
    if "persistentvolumeclaim" in message.lower() and "not found" in message:
        return PoolProblem(Cause.CLAIM_MISSING, f"{name}: {message}", component)
    if "Insufficient" in message and "/gpu" in message:
        return PoolProblem(
            Cause.GPU_MISSING, f"{name}: no node has the GPUs that it requests: {message}", component
        )
    return PoolProblem(Cause.UNSCHEDULABLE, f"{name}: {message}", component)


def _container_problem(
    pod: str, container: dict[str, Any], component: Component | None, now_s: float
) -> PoolProblem | None:
    name, state = container["name"], container.get("state", {})
    waiting = state.get("waiting", {})
    reason, where = waiting.get("reason", ""), f"{pod}, container {name}"
    if reason in _IMAGE_REASONS:
        message = waiting.get("message", "no message")
        return PoolProblem(
            Cause.IMAGE_MISSING, f"{where}: image {container['image']}: {reason}: {message}", component
        )
    if reason in _CREATE_REASONS:
        return _missing_object_in(where, waiting.get("message", reason), component) or PoolProblem(
            Cause.CONTAINER_REFUSED, f"{where}: {reason}: {waiting.get('message', 'no message')}", component
        )
    ended = state.get("terminated") or container.get("lastState", {}).get("terminated")
    if ended and not container.get("ready") and ended.get("exitCode", 0) != 0:
        return _crashed(where, container, ended, component)
    return _slow_start(where, container, state.get("running"), component, now_s)


def _crashed(
    where: str, container: dict[str, Any], ended: dict[str, Any], component: Component | None
) -> PoolProblem:
    restarts = container.get("restartCount", 0)
    if ended.get("reason") == "OOMKilled":
        message = f"{where}: killed at its memory limit, {restarts} restarts; raise resources.limits.memory"
        return PoolProblem(Cause.OUT_OF_MEMORY, message, component)
    exit_message = reason_line(ended.get("message", "").splitlines()) or _EXIT_CODE_MESSAGES.get(
        ended["exitCode"], "no message"
    )
    cause = _CRASH_CAUSES.get(container["name"]) or _engine_cause(exit_message)
    return PoolProblem(
        cause, f"{where}: exit code {ended['exitCode']}, {restarts} restarts: {exit_message}", component
    )


def _engine_cause(exit_message: str) -> Cause:
    lacking = any(message in exit_message for message in _OUT_OF_MEMORY_MESSAGES)
    return Cause.ENGINE_OUT_OF_MEMORY if lacking else Cause.ENGINE_CRASHING


def _slow_start(
    where: str,
    container: dict[str, Any],
    running: dict[str, Any] | None,
    component: Component | None,
    now_s: float,
) -> PoolProblem | None:
    if running is None or container["name"] != "engine" or container.get("started", True):
        return None
    ran_s = now_s - unix_s(running.get("startedAt", ""), now_s)
    if ran_s < SLOW_START_S and not container.get("restartCount", 0):
        return None
    message = f"{where}: has run for {ran_s:.0f} s and fails its startup probe"
    return PoolProblem(Cause.ENGINE_NOT_READY, message, component)


def _workload_problems(children: Iterable[Manifest]) -> list[PoolProblem]:
    """Return the problems in the conditions of Deployments.

    StatefulSets report rejected pods only in Events.
    """
    return [
        _rejected_pods(condition.get("message", ""), component_of(child))
        for child in children
        if child["kind"] == "Deployment"
        for condition in child.get("status", {}).get("conditions", ())
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True"
    ]


def _rejected_pods(message: str, component: Component | None) -> PoolProblem:
    cause = Cause.QUOTA_EXCEEDED if "exceeded quota" in message else Cause.PODS_REFUSED
    return PoolProblem(cause, message, component)


def _event_problems(children: Sequence[Manifest], events: Sequence[Manifest]) -> list[PoolProblem]:
    """Return the problems that only Events report, if they still exist. Events last for an hour and can
    outlive their cause and their pod, whose successor in a StatefulSet has the same name.
    """
    newest_last = sorted(events, key=event_time)
    waiting = {pod["metadata"]["name"]: pod for pod in pods_of(children) if not _mounted(pod)}
    lacking = {child["metadata"]["name"]: child for child in children if _lacks_pods(child)}
    found: list[PoolProblem] = []
    for event in reversed(newest_last):
        about, message = event["involvedObject"]["name"], event.get("message", "")
        if event.get("reason") == "FailedCreate" and about in lacking:
            found.append(_rejected_pods(message, component_of(lacking[about])))
        elif event.get("reason") in _MOUNT_REASONS and _is_about(event, waiting.get(about)):
            component = component_of(waiting[about])
            missing_object = _missing_object_in(about, message, component)
            found.append(
                missing_object or PoolProblem(Cause.VOLUME_NOT_MOUNTED, f"{about}: {message}", component)
            )
    return found


def _is_about(event: Manifest, pod: Manifest | None) -> bool:
    return pod is not None and event["involvedObject"].get("uid") == pod["metadata"].get("uid")


def event_time(event: Manifest) -> str:
    """Return the last time of an event, from the first of its fields that has one."""
    time = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    return str(time)


def _missing_object_in(where: str, message: str, component: Component | None) -> PoolProblem | None:
    """Return the problem in a message like the kubelet's `secret "x" not found`; None for other messages."""
    if "not found" not in message:
        return None
    for word, cause in (
        ("persistentvolumeclaim", Cause.CLAIM_MISSING),
        ("configmap", Cause.CONFIG_MAP_MISSING),
        ("secret", Cause.SECRET_MISSING),
    ):
        if word in message.lower():
            return PoolProblem(cause, f"{where}: {message}", component)
    return None


def _mounted(pod: Manifest) -> bool:
    """Return whether the pod's volumes are mounted.

    The kubelet mounts them before it pulls the first image. A mount that failed once and then succeeded
    leaves its Event behind while a container waits for another reason.
    """
    status = pod.get("status", {})
    containers = [*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())]
    return status.get("phase") in ("Running", "Succeeded") or any(map(_image_checked, containers))


def _image_checked(container: dict[str, Any]) -> bool:
    """Return whether the kubelet has at least looked for the container's image."""
    state = container.get("state", {})
    return bool(state) and state.get("waiting", {}).get("reason") not in _NOT_STARTED_REASONS


def _lacks_pods(child: Manifest) -> bool:
    desired, created = child.get("spec", {}).get("replicas", 1), child.get("status", {}).get("replicas", 0)
    return child["kind"] == "StatefulSet" and bool(created < desired)


def missing_object(ref: Ref, needed_for: str, component: Component | None = None) -> PoolProblem:
    """Return the problem of a missing object. needed_for: the field of the pool that names it."""
    causes = {
        "Secret": Cause.SECRET_MISSING,
        "ConfigMap": Cause.CONFIG_MAP_MISSING,
        "PersistentVolumeClaim": Cause.CLAIM_MISSING,
    }
    message = f"{needed_for}: there is no {ref} in namespace {ref.namespace}; create it, or name another"
    return PoolProblem(causes[ref.kind], message, component)
