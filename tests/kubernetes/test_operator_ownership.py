"""Owners of the fields of a pool's objects: admission, other managers, and the operator again."""

import json
from pathlib import Path
from typing import Any

import pytest
from operating.eventually import eventually
from operating.process import OperatorProcess
from operating.webhook import Patch, mutating_webhook
from operating.world import World, pool_document

pytestmark = pytest.mark.usefixtures("operator")


def mirrored(workload: dict[str, Any]) -> Patch:
    """Change an object as a registry's mirror and a resource adjuster do."""
    spec, at = workload["spec"]["template"]["spec"], "/spec/template/spec"
    patch: Patch = []
    for field in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(field, [])):
            path = f"{at}/{field}/{index}"
            if not container["image"].startswith("mirror.example/"):
                image = f"mirror.example/{container['image']}"
                patch.append({"op": "replace", "path": f"{path}/image", "value": image})
            requests = {"cpu": "333m", "memory": "333Mi"}
            patch.append({"op": "add", "path": f"{path}/resources", "value": {"requests": requests}})
    return patch


def containers(world: World, kind: str, name: str) -> list[dict[str, Any]]:
    found = world.get(kind, name)
    assert found is not None
    spec = found["spec"]["template"]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def reconciled(world: World, operator: OperatorProcess, times: int) -> None:
    """Waits until the operator has reconciled so often; a change of an unrelated annotation triggers each."""
    for round_ in range(times):
        count = operator.metric("penstock_operator_reconcile_seconds_count")
        world.change("ConfigMap", "chat-router", {"metadata": {"annotations": {"seen": str(round_)}}})
        eventually(lambda: operator.metric("penstock_operator_reconcile_seconds_count") > count)  # noqa: B023


def test_changes_by_a_mutating_webhook_are_not_drift(
    world: World, operator: OperatorProcess, tmp_path: Path
) -> None:
    with mutating_webhook(world.client, world.namespace, tmp_path, mirrored):
        world.make("ServingPool", pool_document())
        world.ready()
        world.until("Degraded", "False")
        workloads = [("StatefulSet", "chat-replica"), ("Deployment", "chat-router")]
        for kind, name in workloads:
            for container in containers(world, kind, name):
                assert container["image"].startswith("mirror.example/localhost/")
                assert container["resources"]["requests"]["cpu"] == "333m"
        reconciled(world, operator, 1)  # on a busy machine the last action may have followed the condition
        before = [world.get(kind, name)["metadata"]["generation"] for kind, name in workloads]  # type: ignore[index]
        actions = operator.metric("penstock_operator_actions_total")
        reconciled(world, operator, 3)
        assert operator.metric("penstock_operator_actions_total") == actions
        after = [world.get(kind, name)["metadata"]["generation"] for kind, name in workloads]  # type: ignore[index]
        assert after == before
        assert world.condition("Degraded")[0] == "False"
        assert world.events("DriftMended") == []
        world.change("StatefulSet", "chat-replica", {"spec": {"replicas": 5}})
        eventually(lambda: world.get("StatefulSet", "chat-replica")["spec"]["replicas"] == 2)  # type: ignore[index]
        (reported,) = eventually(lambda: world.events("DriftMended"))
        assert reported == 'StatefulSet "chat-replica": spec.replicas restored to the pool\'s values'


@pytest.mark.parametrize("field", ["replicas", "image"])
def test_a_field_taken_by_another_manager_is_restored(world: World, field: str) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    image = {"template": {"spec": {"containers": [{"name": "router", "image": "other:1"}]}}}
    taken = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "chat-router"},
        "spec": {"replicas": 3} if field == "replicas" else image,
    }
    answer = world.client.patch(
        f"/apis/apps/v1/namespaces/{world.namespace}/deployments/chat-router",
        params={"fieldManager": "somebody", "force": "true"},
        content=json.dumps(taken),
        headers={"content-type": "application/apply-patch+yaml"},
    )
    assert answer.is_success, answer.text

    def taken_back() -> bool:
        found = world.get("Deployment", "chat-router")
        assert found is not None
        image = found["spec"]["template"]["spec"]["containers"][0]["image"]
        return (found["spec"]["replicas"], image) == (1, "localhost/penstock/router:dev")

    eventually(taken_back)
    world.ready()


def test_an_added_init_container_precedes_the_engine_of_a_running_pool(world: World) -> None:
    world.make("ServingPool", pool_document())
    world.ready()
    fetch = {"name": "fetch", "image": "localhost/fetch:1"}
    template = {"spec": {"initContainers": [fetch]}}
    world.change("ServingPool", "chat", {"spec": {"engine": {"podTemplate": template}}})

    def order() -> list[str]:
        found = world.get("StatefulSet", "chat-replica")
        assert found is not None
        return [each["name"] for each in found["spec"]["template"]["spec"]["initContainers"]]

    eventually(lambda: order() == ["fetch", "engine"])
    world.until("Degraded", "False")
