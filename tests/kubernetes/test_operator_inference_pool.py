"""A pool behind a Gateway: its InferencePool, as the Inference Extension defines it, leads to what runs."""

import re

import pytest
from kube.api_server import ROOT
from kube.kubectl import Kubectl
from operating.eventually import eventually
from operating.world import Object, World, pool_document

PAGE = ROOT / "docs" / "gateways.md"
OBJECTS = re.compile(r"^```yaml\n(apiVersion: v1\nkind: Service\n.*?)^```", re.DOTALL | re.MULTILINE)

pytestmark = pytest.mark.usefixtures("upstream", "operator")

GATEWAY = {"host": "chat.example", "kind": "HTTPRoute", "gateway": {"name": "public"}}


def got(world: World, kind: str, name: str) -> Object:
    found = world.get(kind, name)
    assert found is not None, f"no {kind} {name}"
    return found


def selected(world: World, labels: dict[str, str]) -> set[str]:
    """Return the names of the pods that have the labels."""
    pods = world.all("Pod", ",".join(f"{name}={value}" for name, value in labels.items()))
    return {pod["metadata"]["name"] for pod in pods}


def test_an_inference_pool_selects_the_replicas_and_names_the_pickers(world: World) -> None:
    world.make("ServingPool", pool_document(gateway="inferencePool", ingress=GATEWAY))
    world.ready()
    spec = got(world, "InferencePool", "chat")["spec"]
    replicas = {pod["metadata"]["name"] for pod in world.pods("replica")}
    assert len(replicas) == 2
    assert selected(world, spec["selector"]["matchLabels"]) == replicas
    picker = got(world, "Service", spec["endpointPickerRef"]["name"])["spec"]
    assert spec["endpointPickerRef"]["port"]["number"] in {port["port"] for port in picker["ports"]}
    (front,) = selected(world, picker["selector"])
    assert front not in replicas
    (backend,) = got(world, "HTTPRoute", "chat")["spec"]["rules"][0]["backendRefs"]
    assert (backend["group"], backend["kind"]) == ("inference.networking.k8s.io", "InferencePool")
    assert world.get("InferencePool", backend["name"]) is not None
    assert world.get("Service", "chat") is None


def test_a_changed_inference_pool_is_restored_and_its_status_is_the_gateway_s(world: World) -> None:
    world.make("ServingPool", pool_document(gateway="inferencePool"))
    world.ready()
    parent = {"parentRef": {"name": "public"}, "controllerName": "a.example/gateway"}
    world.change("InferencePool", "chat", {"status": {"parents": [parent]}}, "status")
    world.change("InferencePool", "chat", {"spec": {"targetPorts": [{"number": 9}]}})
    eventually(lambda: got(world, "InferencePool", "chat")["spec"]["targetPorts"] == [{"number": 7002}])
    (kept,) = got(world, "InferencePool", "chat")["status"]["parents"]
    assert kept["controllerName"] == "a.example/gateway"


def test_the_documented_objects_for_envoy_gateway_are_valid(kubectl: Kubectl) -> None:
    (objects,) = OBJECTS.findall(PAGE.read_text())
    made = kubectl.out("create", "--dry-run=server", "--validate=strict", "-f", "-", stdin=objects)
    assert made.count("created") == 6
