"""Why pods do not run, from their status in Kubernetes. The manifests are those of a real cluster."""

from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest, Ref
from penstock_operator.manifests.names import Component
from penstock_operator.manifests.pods import component_of, is_ready, pods_of
from penstock_operator.status.diagnosis import Cause, PoolProblem, diagnose, missing_object

NOW_S = 1_767_323_045.0  # 2026-01-02T03:04:05Z


def pod(name: str = "chat-replica-0", component: str = "replica", **status: Any) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": component}},
        "status": status,
    }


def container(name: str = "engine", image: str = "vllm:v1", **rest: Any) -> dict[str, Any]:
    return {"name": name, "image": image, "ready": False, "restartCount": 0} | rest


def unscheduled(message: str) -> Manifest:
    output = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(phase="Pending", conditions=[output])


def event(about: str, reason: str, message: str, at: str = "2026-01-02T03:04:00Z") -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"creationTimestamp": at},
        "involvedObject": {"name": about},
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
    }


def replicas(wanted: int, made: int) -> Manifest:
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "chat-replica", "labels": {"app.kubernetes.io/component": "replica"}},
        "spec": {"replicas": wanted},
        "status": {"replicas": made},
    }


def problems(*children: Manifest, events: list[Manifest] | None = None) -> list[PoolProblem]:
    return list(diagnose(children, events or [], [], NOW_S))


def the_problem(*children: Manifest, events: list[Manifest] | None = None) -> PoolProblem:
    (problem,) = problems(*children, events=events)
    return problem


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"]
)
def test_an_image_that_cannot_be_pulled_is_a_problem(reason: str) -> None:
    state = {"waiting": {"reason": reason, "message": "not found"}}
    problem = the_problem(pod(phase="Pending", initContainerStatuses=[container(state=state)]))
    assert problem.cause is Cause.IMAGE_MISSING
    assert problem.component is Component.REPLICA
    assert problem.message == f"chat-replica-0, container engine: image vllm:v1: {reason}: not found"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", Cause.GPU_MISSING),
        ("0/3 nodes are available: 3 Insufficient memory.", Cause.UNSCHEDULABLE),
        ("0/1 nodes are available: 1 node(s) had untolerated taint {gpu: }.", Cause.UNSCHEDULABLE),
        ('persistentvolumeclaim "weights" not found', Cause.CLAIM_MISSING),
        ("0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims.", Cause.CLAIM_PENDING),
        ("0/2 nodes: pod has unbound immediate PersistentVolumeClaims. not found", Cause.CLAIM_PENDING),
    ],
)
def test_a_pod_that_fits_no_node_is_a_problem(output: str, cause: Cause) -> None:
    problem = the_problem(unscheduled(output))
    assert problem.cause is cause
    assert problem.message.startswith("chat-replica-0: ")
    assert problem.message.endswith(output)


def test_a_crash_loop_is_reported_with_exit_code_and_last_line() -> None:
    ended = {"exitCode": 2, "reason": "Error", "message": "Traceback\nRuntimeError: no CUDA device\n\n"}
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    crashed = container(state=state, lastState={"terminated": ended}, restartCount=4)
    problem = the_problem(pod(phase="Running", initContainerStatuses=[crashed]))
    assert problem.cause is Cause.ENGINE_CRASHING
    assert problem.message == (
        "chat-replica-0, container engine: exit code 2, 4 restarts: RuntimeError: no CUDA device"
    )


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("sidecar", Cause.SIDECAR_CRASHING),
        ("router", Cause.ROUTER_CRASHING),
        ("picker", Cause.GATEWAY_CRASHING),
        ("envoy", Cause.GATEWAY_CRASHING),
    ],
)
def test_a_crash_names_its_container(name: str, cause: Cause) -> None:
    crashed = container(name, state={"terminated": {"exitCode": 1}})
    assert the_problem(pod(containerStatuses=[crashed])).cause is cause


def test_a_container_killed_at_its_memory_limit_is_a_problem() -> None:
    ended = {"exitCode": 137, "reason": "OOMKilled"}
    crashed = container(state={"terminated": ended}, restartCount=1)
    assert the_problem(pod(initContainerStatuses=[crashed])).cause is Cause.OUT_OF_MEMORY


def test_an_old_crash_of_a_ready_container_is_not_a_problem() -> None:
    healed = container(
        ready=True,
        started=True,
        state={"running": {}},
        lastState={"terminated": {"exitCode": 1}},
        restartCount=1,
    )
    assert problems(pod(phase="Running", initContainerStatuses=[healed])) == []


@pytest.mark.parametrize(
    ("ran_since", "slow"), [("2026-01-02T03:03:45Z", False), ("2026-01-02T03:00:00Z", True)]
)
def test_an_engine_that_starts_slowly_is_a_problem_and_a_new_one_is_not(ran_since: str, slow: bool) -> None:
    loading = container(started=False, state={"running": {"startedAt": ran_since}})
    found = [problem.cause for problem in problems(pod(initContainerStatuses=[loading]))]
    assert found == ([Cause.ENGINE_NOT_READY] if slow else [])


def test_a_missing_secret_is_named_as_the_kubelet_names_it() -> None:
    state = {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "ide-keys" not found'}}
    problem = the_problem(
        pod("chat-router-0", "router", containerStatuses=[container("router", state=state)])
    )
    assert problem.cause is Cause.SECRET_MISSING
    assert problem.component is Component.ROUTER


def test_a_failed_mount_is_read_from_events_while_the_pod_waits() -> None:
    reported = event(
        "chat-replica-0", "FailedMount", 'MountVolume.SetUp failed: configmap "models" not found'
    )
    problem = the_problem(pod(phase="Pending"), events=[reported])
    assert problem.cause is Cause.CONFIG_MAP_MISSING
    assert problems(pod(phase="Running"), events=[reported]) == []


@pytest.mark.parametrize(
    ("engine", "sidecar", "causes"),
    [
        ({}, {}, [Cause.VOLUME_NOT_MOUNTED]),
        ("PodInitializing", "PodInitializing", [Cause.VOLUME_NOT_MOUNTED]),
        ("ContainerCreating", {}, [Cause.VOLUME_NOT_MOUNTED]),
        ("ImagePullBackOff", "PodInitializing", [Cause.IMAGE_MISSING]),
        ({"running": {"startedAt": "2026-01-02T03:04:00Z"}}, "PodInitializing", []),
    ],
)
def test_a_mount_that_succeeded_later_hides_no_other_problem(
    engine: Any, sidecar: Any, causes: list[Cause]
) -> None:
    def state(output: Any) -> Any:
        return {"waiting": {"reason": output, "message": "no"}} if isinstance(output, str) else output

    now = pod(
        phase="Pending",
        initContainerStatuses=[container(state=state(engine), started=True)],
        containerStatuses=[container("sidecar", state=state(sidecar))],
    )
    reported = event("chat-replica-0", "FailedMount", "failed to sync configmap cache: timed out")
    assert [problem.cause for problem in problems(now, events=[reported])] == causes


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ('references non-existent secret key, secret "ca" not found', Cause.SECRET_MISSING),
        ('persistentvolumeclaim "weights" not found', Cause.CLAIM_MISSING),
        ("driver name x.csi.k8s.io not found in the list of drivers", Cause.VOLUME_NOT_MOUNTED),
        ('secret "ca" cannot be read', Cause.VOLUME_NOT_MOUNTED),
    ],
)
def test_the_cause_of_a_failed_mount_is_read_from_its_event(message: str, cause: Cause) -> None:
    reported = event("chat-replica-0", "FailedMount", message)
    problem = the_problem(pod(phase="Pending"), events=[reported])
    assert (problem.cause, problem.message) == (cause, f"chat-replica-0: {message}")


def test_an_event_about_an_earlier_pod_of_the_same_name_is_ignored() -> None:
    reported = event("chat-replica-0", "FailedMount", "volume not there yet")
    reported["involvedObject"]["uid"] = "before"
    now = pod(phase="Pending")
    now["metadata"]["uid"] = "now"
    assert problems(now, events=[reported]) == []
    now["metadata"]["uid"] = "before"
    assert [problem.cause for problem in problems(now, events=[reported])] == [Cause.VOLUME_NOT_MOUNTED]


def test_the_newest_event_counts() -> None:
    old = event("chat-replica-0", "FailedMount", "old", at="2026-01-02T03:00:00Z")
    new = event("chat-replica-0", "FailedMount", "new", at="2026-01-02T03:04:00Z")
    assert the_problem(pod(phase="Pending"), events=[new, old]).message == "chat-replica-0: new"


def test_a_quota_is_read_from_the_statefulsets_events_while_pods_are_missing() -> None:
    reported = event(
        "chat-replica",
        "FailedCreate",
        'create Pod chat-replica-1 failed error: pods "chat-replica-1" is forbidden: exceeded quota: gpus',
    )
    problem = the_problem(replicas(wanted=2, made=1), events=[reported])
    assert problem.cause is Cause.QUOTA_EXCEEDED
    assert problem.component is Component.REPLICA
    assert problems(replicas(wanted=2, made=2), events=[reported]) == []


def test_a_refusal_of_pods_is_read_from_the_deployments_condition() -> None:
    output = {"type": "ReplicaFailure", "status": "True", "message": "violates PodSecurity: restricted"}
    deployment = {
        "kind": "Deployment",
        "metadata": {"name": "chat-router", "labels": {"app.kubernetes.io/component": "router"}},
        "status": {"conditions": [output]},
    }
    assert the_problem(deployment) == PoolProblem(Cause.PODS_REFUSED, output["message"], Component.ROUTER)


def test_an_evicted_pod_is_a_problem() -> None:
    problem = the_problem(pod(phase="Failed", reason="Evicted", message="low on memory"))
    assert problem == PoolProblem(Cause.EVICTED, "chat-replica-0: Evicted: low on memory", Component.REPLICA)


def test_a_terminating_pod_is_not_read() -> None:
    deleted = unscheduled("0/1 nodes are available")
    deleted["metadata"]["deletionTimestamp"] = "2026-01-02T03:04:05Z"
    assert problems(deleted) == []


def test_pods_with_the_same_problem_share_one_line() -> None:
    many = [unscheduled("3 Insufficient nvidia.com/gpu") for _ in range(5)]
    assert the_problem(*many).cause is Cause.GPU_MISSING


def test_root_causes_are_listed_first() -> None:
    missing = missing_object(Ref("v1", "Secret", "team", "ide-keys"), "spec.applications[0].keys.secret")
    found = diagnose([unscheduled("3 Insufficient nvidia.com/gpu")], [], [missing], NOW_S)
    assert [problem.cause for problem in found] == [Cause.SECRET_MISSING, Cause.GPU_MISSING]
    assert missing.message == (
        'spec.applications[0].keys.secret: there is no Secret "ide-keys" in namespace team; '
        "create it, or name another"
    )


def crashed(exit_code: int = 1, message: str = "", name: str = "engine") -> Manifest:
    ended = {"exitCode": exit_code, "reason": "Error", "message": message}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    return pod(
        initContainerStatuses=[container(name, state=state, lastState={"terminated": ended}, restartCount=2)]
    )


@pytest.mark.parametrize(
    "words",
    [  # of vLLM 0.32, as its plug-in leaves them or as they end its log; the second is torch's
        "ValueError: To serve at least one request with the model's max seq len (2048), (0.0 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (0.0 GiB).",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`",
        "ValueError: Available memory on node 0 (16.63/21.96 GiB) on kv cache allocation is less than "
        "requested memory for kv (9000.0 GiB).",
    ],
)
def test_an_engine_without_memory_for_its_model_or_cache_is_a_problem(words: str) -> None:
    problem = the_problem(crashed(message=f"Traceback:\n  frame\n{words}\n"))
    assert problem.cause is Cause.ENGINE_OUT_OF_MEMORY
    assert problem.message.endswith(words)
    assert the_problem(crashed(message=words, name="sidecar")).cause is Cause.SIDECAR_CRASHING


def test_the_failed_process_is_quoted_and_not_the_one_that_waited_for_it() -> None:
    waited = "RuntimeError: Engine core initialization failed. See root cause above."
    output = f"penstock_vllm.versions.UnsupportedVllm: penstock: vLLM 0.30.0 is not supported\n{waited}\n"
    assert the_problem(crashed(message=output)).message.endswith("vLLM 0.30.0 is not supported")


@pytest.mark.parametrize(("exit_code", "words"), [(137, "no memory left"), (3, "no message")])
def test_a_container_without_a_message_is_reported_by_its_exit_code(exit_code: int, words: str) -> None:
    problem = the_problem(crashed(exit_code))
    assert problem.cause is Cause.ENGINE_CRASHING
    assert f"exit code {exit_code}, 2 restarts: " in problem.message
    assert words in problem.message


@pytest.mark.parametrize(
    ("status", "ready"),
    [
        ({}, False),
        ({"podIP": "10.0.0.1"}, False),
        ({"conditions": [{"type": "Ready", "status": "True"}]}, False),
        ({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "False"}]}, False),
        ({"podIP": "10.0.0.1", "conditions": [{"type": "Initialized", "status": "True"}]}, False),
        ({"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}, True),
    ],
)
def test_a_pod_is_ready_with_its_condition_and_an_address(status: dict[str, Any], ready: bool) -> None:
    assert is_ready({"kind": "Pod", "metadata": {"name": "p"}, "status": status}) is ready


def test_terminating_pods_and_other_objects_are_left_out() -> None:
    stays: Manifest = {"kind": "Pod", "metadata": {"name": "stays"}}
    leaves: Manifest = {"kind": "Pod", "metadata": {"name": "leaves", "deletionTimestamp": "now"}}
    assert pods_of([stays, leaves, {"kind": "Service", "metadata": {"name": "chat"}}]) == [stays]


def test_an_object_belongs_to_the_known_component_of_its_label() -> None:
    def of(label: str) -> Component | None:
        return component_of({"metadata": {"labels": {"app.kubernetes.io/component": label}}})

    assert (of("router"), of("replica"), of("database")) == (Component.ROUTER, Component.REPLICA, None)
    assert component_of({"metadata": {}}) is None
