"""The life of a pool on a real API server: creation, corrected drift, changes and deletion."""

import time
from typing import Any

import pytest
from kube.kubectl import Kubectl
from operating.eventually import eventually
from operating.process import OperatorProcess
from operating.world import World, pool_document
from penstock_operator.manifests.timestamps import unix_s

pytestmark = pytest.mark.usefixtures("operator")

MADE = {
    "ConfigMap": {"chat-replica", "chat-router"},
    "Deployment": {"chat-router"},
    "NetworkPolicy": {"chat-replica", "chat-router"},
    "PodDisruptionBudget": {"chat-replica", "chat-router"},
    "Role": {"chat-router"},
    "RoleBinding": {"chat-router"},
    "Service": {"chat", "chat-admin", "chat-replicas"},
    "ServiceAccount": {"chat-replica", "chat-router"},
    "StatefulSet": {"chat-replica"},
    "Secret": {"chat-ca", "chat-tls"},
}
OWN = "app.kubernetes.io/managed-by=penstock-operator"


def names(world: World, kind: str) -> set[str]:
    return {made["metadata"]["name"] for made in world.all(kind, OWN)}


def test_a_new_pool_gets_all_its_objects(world: World, kubectl: Kubectl) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    assert {kind: names(world, kind) for kind in MADE} == MADE
    uid = world.pool()["metadata"]["uid"]
    for kind in MADE:
        for made in world.all(kind, OWN):
            (owner,) = made["metadata"]["ownerReferences"]
            assert (owner["kind"], owner["uid"], owner["controller"]) == ("ServingPool", uid, True)
    status = world.pool()["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["observedGeneration"] == world.pool()["metadata"]["generation"]
    assert world.condition("Ready") == ("True", "Serving", "2 of 2 replicas and 1 of 1 router ready")
    eventually(lambda: world.events("Ready"))
    columns = kubectl.out("get", "pools", "--no-headers").split()
    assert columns[:5] == ["chat", "True", "2", "2", "slos-serve"]


def test_the_operator_writes_only_the_pools_status(world: World) -> None:
    before = world.make("ServingPool", pool_document())
    world.ready()
    metadata = world.pool()["metadata"]
    assert "finalizers" not in metadata
    assert "annotations" not in metadata
    assert metadata["generation"] == before["metadata"]["generation"]


def test_an_unchanged_pool_is_reconciled_without_writes(world: World, operator: OperatorProcess) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    at_rest = world.pool()["metadata"]["resourceVersion"]
    looks = operator.metric("penstock_operator_reconcile_seconds_count")
    for round_ in range(3):  # an unrelated change makes the operator reconcile
        world.change("ConfigMap", "chat-router", {"metadata": {"annotations": {"seen": str(round_)}}})
    eventually(lambda: operator.metric("penstock_operator_reconcile_seconds_count") > looks)
    assert world.pool()["metadata"]["resourceVersion"] == at_rest


@pytest.mark.parametrize(
    ("kind", "name", "harm", "field"),
    [
        ("Service", "chat", {"spec": {"ports": [{"name": "http", "port": 81}]}}, "spec.ports"),
        ("ConfigMap", "chat-router", {"data": {"pool.yaml": "nonsense"}}, "data"),
        ("StatefulSet", "chat-replica", {"spec": {"replicas": 7}}, "spec.replicas"),
        ("Role", "chat-router", {"rules": []}, "rules"),
    ],
)
def test_drift_is_corrected(world: World, kind: str, name: str, harm: dict[str, Any], field: str) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    before = world.get(kind, name)
    assert before is not None
    world.change(kind, name, harm)
    part = field.split(".", maxsplit=1)[0]

    def restored() -> bool:
        now = world.get(kind, name)
        return now is not None and now[part] == before[part]

    eventually(restored)
    eventually(lambda: [output for output in world.events("DriftMended") if f'{kind} "{name}"' in output])


def test_deleted_objects_are_created_again(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    for kind in ("Service", "ConfigMap", "Deployment", "NetworkPolicy"):
        for name in MADE[kind]:
            world.delete(kind, name)
    eventually(lambda: {kind: names(world, kind) for kind in MADE} == MADE)
    world.ready()


def test_objects_no_longer_desired_are_deleted_and_foreign_ones_stay(world: World) -> None:
    world.make("ServingPool", pool_document(ingress={"host": "chat.example"}))
    eventually(lambda: world.get("Ingress", "chat"))
    stranger = {"metadata": {"name": "stranger", "labels": {"penstock.dev/pool": "chat", **_labels()}}}
    world.make("ConfigMap", stranger)
    world.change("ServingPool", "chat", {"spec": {"ingress": None}})
    world.await_absence(lambda: world.get("Ingress", "chat"))
    assert world.get("ConfigMap", "stranger") is not None
    eventually(lambda: [output for output in world.events("Removed") if "Ingress" in output])


def _labels() -> dict[str, str]:
    key, _, value = OWN.partition("=")
    return {key: value}


def test_a_foreign_object_is_left_alone_reported_and_replaced_once_deleted(world: World) -> None:
    foreign = {"metadata": {"name": "chat"}, "spec": {"ports": [{"port": 9}], "selector": {"app": "other"}}}
    world.make("Service", foreign)
    world.make("ServingPool", pool_document())
    message = world.until("Degraded", "True", "NameTaken")
    assert 'Service "chat"' in message
    service = world.get("Service", "chat")
    assert service is not None
    assert service["spec"]["selector"] == {"app": "other"}
    world.delete("Service", "chat")
    world.until("Degraded", "False")
    world.ready()
    eventually(lambda: world.events("Recovered"))


def test_a_deleted_pool_leaves_no_objects(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    world.delete("ServingPool", "chat")
    eventually(lambda: all(not names(world, kind) for kind in MADE))
    eventually(lambda: not world.pods("replica") and not world.pods("router"))


def test_a_recreated_pool_has_its_own_objects(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    world.delete("ServingPool", "chat")
    again = world.make("ServingPool", pool_document(replicas=1))["metadata"]["uid"]

    def is_new() -> bool:
        made = world.get("StatefulSet", "chat-replica")
        return made is not None and made["metadata"]["ownerReferences"][0]["uid"] == again

    eventually(is_new)
    world.ready()
    assert world.pool()["status"]["replicas"] == 1


def test_kubectl_scale_changes_the_number_of_replicas(world: World, kubectl: Kubectl) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    kubectl.out("scale", "servingpool", "chat", "--replicas=3")
    eventually(lambda: world.pool()["status"].get("readyReplicas") == 3)
    kubectl.out("scale", "servingpool", "chat", "--replicas=1")
    eventually(lambda: world.pool()["status"].get("replicas") == 1)
    assert kubectl.out("get", "pool", "chat", "-o=jsonpath={.status.selector}")


def test_the_older_of_two_pools_keeps_their_host(world: World) -> None:
    older = world.make("ServingPool", pool_document("older", ingress={"host": "one.example"}))
    eventually(lambda: world.get("Ingress", "older"))
    made_s = unix_s(older["metadata"]["creationTimestamp"], 0.0)  # whole seconds: of one, none is older
    eventually(lambda: time.time() >= made_s + 1.0)
    world.make("ServingPool", pool_document("younger", ingress={"host": "one.example"}))
    message = world.until("Degraded", "True", "HostTaken", pool="younger")
    assert f"one.example belongs to the older pool {world.namespace}/older" in message
    assert world.get("Ingress", "younger") is None
    world.ready("younger")  # it serves, but for that
    world.delete("ServingPool", "older")
    world.until("Degraded", "False", pool="younger")
    eventually(lambda: world.get("Ingress", "younger"))


def test_a_changed_spec_reaches_the_pods(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    before = {pod["metadata"]["uid"] for pod in world.pods("replica")}
    world.change("ServingPool", "chat", {"spec": {"scheduling": {"policy": "fcfs"}}})

    def rolled() -> bool:
        status = world.pool()["status"]
        now = {pod["metadata"]["uid"] for pod in world.pods("replica")}
        return status["policy"] == "fcfs" and len(now) == 2 and not now & before

    eventually(rolled)
    world.ready()
    generation = world.pool()["metadata"]["generation"]
    assert world.pool()["status"]["observedGeneration"] == generation


def test_a_pool_changes_its_gateway_and_back(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    service = world.get("Service", "chat")
    assert service is not None
    world.change("ServingPool", "chat", {"spec": {"gateway": "envoy"}})
    eventually(lambda: containers(world, "router") == {"endpoints", "envoy", "picker"})
    eventually(lambda: all("--http-port=7002" in each for each in sidecar_arguments(world)))
    world.until("Ready", "True")
    now = world.get("Service", "chat")
    assert now is not None
    assert now["metadata"]["uid"] == service["metadata"]["uid"]
    assert names(world, "ConfigMap") == {"chat-envoy", "chat-replica", "chat-router"}
    world.change("ServingPool", "chat", {"spec": {"gateway": "router"}})
    eventually(lambda: containers(world, "router") == {"router"})
    eventually(lambda: all("--http-port=7002" not in each for each in sidecar_arguments(world)))
    world.until("Ready", "True")
    assert names(world, "ConfigMap") == MADE["ConfigMap"]


def containers(world: World, component: str) -> set[str]:
    specs = [pod["spec"] for pod in world.pods(component)]
    return {each["name"] for spec in specs for each in (*spec.get("initContainers", ()), *spec["containers"])}


def sidecar_arguments(world: World) -> list[list[str]]:
    return [pod["spec"]["containers"][0]["args"] for pod in world.pods("replica")]
