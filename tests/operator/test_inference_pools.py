"""Pools whose gateway is a Gateway of the cluster: what its controller reads, and network access."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.settings import OperatorSettings
from penstock_picker.options import parse as parse_picker
from penstock_sidecar.options import parse as parse_sidecar

Want = Callable[..., dict[str, Manifest]]

ROUTE = {"host": "a.example", "kind": "HTTPRoute", "gateway": {"name": "public"}}
IDE = {"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}


def container(objects: dict[str, Manifest], workload: str) -> Any:
    (found,) = objects[workload]["spec"]["template"]["spec"]["containers"]
    return found


def test_a_gateway_finds_the_replicas_http_ports_and_the_pickers(want: Want) -> None:
    objects = want(gateway="inferencePool")
    spec = objects["InferencePool/llama"]["spec"]
    replicas = objects["StatefulSet/llama-replica"]["spec"]["template"]["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= replicas.items()
    sidecar = container(objects, "StatefulSet/llama-replica")
    (target,) = spec["targetPorts"]
    assert {"name": "http", "containerPort": target["number"]} in sidecar["ports"]
    picker = objects[f"Service/{spec['endpointPickerRef']['name']}"]["spec"]
    (port,) = picker["ports"]
    assert (port["port"], port["appProtocol"]) == (spec["endpointPickerRef"]["port"]["number"], "http2")
    pods = objects["Deployment/llama-router"]["spec"]["template"]["metadata"]["labels"]
    assert picker["selector"].items() <= pods.items()


def test_the_routes_backend_is_the_inference_pool(want: Want) -> None:
    (rule,) = want(gateway="inferencePool", ingress=ROUTE)["HTTPRoute/llama"]["spec"]["rules"]
    assert rule["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "llama"}
    ]


@pytest.mark.parametrize(("applications", "mode"), [([], "FailOpen"), ([IDE], "FailClose")])
def test_a_pool_with_keys_is_closed_while_no_picker_checks_them(
    want: Want, applications: list[Any], mode: str
) -> None:
    objects = want(gateway="inferencePool", applications=applications)
    assert objects["InferencePool/llama"]["spec"]["endpointPickerRef"]["failureMode"] == mode


@pytest.mark.parametrize("tls", [True, False])
def test_the_processes_accept_their_arguments(want: Want, settings: OperatorSettings, tls: bool) -> None:
    objects = want(gateway="inferencePool", settings=replace(settings, tls=tls))
    picker = parse_picker(container(objects, "Deployment/llama-router")["args"])
    assert (picker.ext_proc_port, picker.ext_authz_port, picker.host) == (9002, None, "0.0.0.0")
    assert (picker.certificate is not None, picker.endpoints_file) == (tls, None)
    words = container(objects, "StatefulSet/llama-replica")["args"]
    sidecar = parse_sidecar([*(word for word in words if not word.startswith("--tls")), "--insecure"])
    assert sidecar.http is not None
    assert sidecar.http_tls is None


def test_the_picker_shows_gateways_a_certificate_that_is_not_the_replicas(want: Want) -> None:
    objects = want(gateway="inferencePool")
    volumes = objects["Deployment/llama-router"]["spec"]["template"]["spec"]["volumes"]
    (tls,) = (volume["secret"] for volume in volumes if volume["name"] == "tls")
    assert {item["key"] for item in tls["items"]} == {
        "ca.crt",
        "client.crt",
        "client.key",
        "picker.crt",
        "picker.key",
    }
    assert {"picker.crt", "picker.key"} <= objects["Secret/llama-tls"]["data"].keys()


def test_only_gateways_reach_pickers_and_replicas_over_http(want: Want, settings: OperatorSettings) -> None:
    named = replace(settings, gateway_namespaces=("edge", "gateways"))
    objects = want(gateway="inferencePool", settings=named)
    asked, admin = objects["NetworkPolicy/llama-router"]["spec"]["ingress"]
    routers, gateways, metrics = objects["NetworkPolicy/llama-replica"]["spec"]["ingress"]
    ports = [rule["ports"][0]["port"] for rule in (asked, admin, routers, gateways, metrics)]
    assert ports == [9002, 9080, 7000, 7002, 7001]
    assert asked["from"] == gateways["from"]
    ((peer,),) = [asked["from"]]
    assert peer["namespaceSelector"]["matchExpressions"] == [
        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["edge", "gateways"]}
    ]
    everybody = want(gateway="inferencePool")["NetworkPolicy/llama-router"]["spec"]["ingress"][0]
    assert everybody["from"] == [{"namespaceSelector": {}}]
