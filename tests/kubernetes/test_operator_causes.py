"""A valid pool that cannot run has the reason in a condition and an Event, and recovers without the cause.

The test writes the states that only a kubelet reports; the cluster itself causes all others.
"""

from collections.abc import Callable

import pytest
from operating.eventually import eventually
from operating.world import Object, World, pool_document

pytestmark = pytest.mark.usefixtures("operator")

ENGINE = {"type": "simulated", "timeModel": "llama-3-8b-a100", "kvCacheTokens": 43296}


def wait_degraded(world: World, reason: str) -> str:
    """Wait until the pool reports the reason in a condition and an Event; return the message."""
    message = world.until("Degraded", "True", reason)
    eventually(lambda: world.events(reason))
    return message


def wait_recovered(world: World) -> None:
    world.until("Degraded", "False")
    world.ready()
    eventually(lambda: world.events("Recovered"))


def test_a_missing_gpu_is_reported(world: World) -> None:
    gpus = ENGINE | {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    world.make("ServingPool", pool_document(engine=gpus))
    message = wait_degraded(world, "GpuMissing")
    assert "Insufficient nvidia.com/gpu" in message
    assert world.condition("ReplicasReady")[1] == "GpuMissing"
    world.until("RouterReady", "True")
    world.change("ServingPool", "chat", {"spec": {"engine": {"resources": {"limits": None}}}})
    wait_recovered(world)


def test_a_pod_that_fits_no_node_is_reported(world: World) -> None:
    selecting = ENGINE | {"podTemplate": {"spec": {"nodeSelector": {"gpu": "a100"}}}}
    world.make("ServingPool", pool_document(engine=selecting))
    assert "node affinity/selector" in wait_degraded(world, "Unschedulable")
    world.change("ServingPool", "chat", {"spec": {"engine": {"podTemplate": None}}})
    wait_recovered(world)


def test_a_missing_claim_of_the_weights_is_reported(world: World) -> None:
    source = {"persistentVolumeClaim": "weights"}
    model = {"name": "meta-llama/Llama-3.1-8B-Instruct", "source": source}
    engine = {"type": "openai", "image": "sglang:1", "timeModel": "llama-3-8b-a100"}
    world.make("ServingPool", pool_document(model=model, engine=engine))
    message = wait_degraded(world, "ClaimMissing")
    assert 'spec.model.source.persistentVolumeClaim: there is no PersistentVolumeClaim "weights"' in message
    claim = {
        "accessModes": ["ReadOnlyMany"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "slow",
    }
    world.make("PersistentVolumeClaim", {"metadata": {"name": "weights"}, "spec": claim})
    world.until("Degraded", "True", "ClaimPending")  # it exists now, and no volume is bound to it


def test_a_missing_secret_of_api_keys_is_reported(world: World) -> None:
    applications = [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}]
    world.make("ServingPool", pool_document(applications=applications))
    message = wait_degraded(world, "SecretMissing")
    assert 'spec.applications[0].keys.secret: there is no Secret "ide-keys"' in message
    world.make("Secret", {"metadata": {"name": "ide-keys"}, "stringData": {"keys": "key-1"}})
    wait_recovered(world)


def test_a_missing_measured_time_model_is_reported(world: World) -> None:
    engine = {"type": "openai", "image": "sglang:1", "timeModel": "measured.json"}
    world.make("ServingPool", pool_document(engine=engine))
    message = wait_degraded(world, "ConfigMapMissing")
    assert 'spec.engine.timeModel: there is no ConfigMap "measured"' in message
    world.make("ConfigMap", {"metadata": {"name": "measured"}, "data": {"time-model.json": "{}"}})
    wait_recovered(world)


def test_an_exhausted_quota_is_reported(world: World) -> None:
    world.make("ResourceQuota", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}})
    world.make("ServingPool", pool_document())
    assert "exceeded quota: few" in wait_degraded(world, "QuotaExceeded")
    world.delete("ResourceQuota", "few")
    world.make("ResourceQuota", {"metadata": {"name": "many"}, "spec": {"hard": {"pods": "9"}}})
    world.change("ServingPool", "chat", {"spec": {"replicas": 1}})  # its controllers try again at once
    world.change("ServingPool", "chat", {"spec": {"replicas": 2}})
    wait_recovered(world)


def waiting(reason: str, message: str) -> Callable[[Object], Object]:
    return lambda container: {"state": {"waiting": {"reason": reason, "message": message}}}


def crashed(container: Object) -> Object:
    ended = {"exitCode": 2, "reason": "Error", "message": "loading\nValueError: no model at /models/weights"}
    looping = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s restarting"}}
    return {"state": looping, "lastState": {"terminated": ended}, "restartCount": 3}


@pytest.mark.parametrize(
    ("container", "change", "reason", "expected"),
    [
        (
            "engine",
            waiting("ErrImagePull", "manifest unknown"),
            "ImageMissing",
            "ErrImagePull: manifest unknown",
        ),
        (
            "engine",
            waiting("ErrImageNeverPull", "not present"),
            "ImageMissing",
            "ErrImageNeverPull: not present",
        ),
        (
            "engine",
            crashed,
            "EngineCrashing",
            "exit code 2, 3 restarts: ValueError: no model at /models/weights",
        ),
        ("sidecar", crashed, "SidecarCrashing", "container sidecar: exit code 2"),
    ],
)
def test_failures_reported_by_the_node_become_the_pools_reason(
    world: World, container: str, change: Callable[[Object], Object], reason: str, expected: str
) -> None:
    world.make("ServingPool", pool_document(replicas=1))
    world.ready()
    (pod,) = world.pods("replica")
    healthy = pod["status"]
    world.as_kubelet(pod, with_failure(healthy, container, change))
    assert expected in wait_degraded(world, reason)
    world.until("Ready", "False", reason)
    world.as_kubelet(pod, healthy)
    wait_recovered(world)


def with_failure(healthy: Object, container: str, change: Callable[[Object], Object]) -> Object:
    """Return a pod's status in which one container has failed."""

    def each(statuses: list[Object]) -> list[Object]:
        return [
            one | {"ready": False, "started": False} | change(one) if one["name"] == container else one
            for one in statuses
        ]

    unready = [
        c | {"status": "False"} if c["type"] in ("Ready", "ContainersReady") else c
        for c in healthy["conditions"]
    ]
    lists = ("initContainerStatuses", "containerStatuses")
    return {"conditions": unready} | {name: each(healthy[name]) for name in lists if name in healthy}
