"""Pods of pools whose gateway is an Envoy: order of start, network access and Envoy's configuration."""

import subprocess
from base64 import b64decode
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import orjson
import pytest
from penstock_cli.local.envoy import envoy_program
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.settings import OperatorSettings
from penstock_picker.options import parse as parse_picker
from penstock_runtime.envoy.endpoints import write_endpoints
from penstock_sidecar.options import parse as parse_sidecar
from self_signed import Identity

Want = Callable[..., dict[str, Manifest]]

IDE = {"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}


def pod(objects: dict[str, Manifest], workload: str = "Deployment/llama-router") -> Any:
    return objects[workload]["spec"]["template"]["spec"]


def named(containers: list[Any], name: str) -> Any:
    (found,) = (each for each in containers if each["name"] == name)
    return found


def test_envoy_starts_before_its_picker_and_is_stopped_after_it(want: Want) -> None:
    """As Kubernetes has it of init containers that keep running."""
    spec = pod(want(gateway="envoy"))
    assert [each["name"] for each in spec["initContainers"]] == ["endpoints", "envoy"]
    assert [each.get("restartPolicy") for each in spec["initContainers"]] == [None, "Always"]
    assert [each["name"] for each in spec["containers"]] == ["picker"]


def test_envoys_file_is_written_before_envoy_starts(want: Want) -> None:
    spec = pod(want(gateway="envoy"))
    endpoints, picker = spec["initContainers"][0], spec["containers"][0]
    (path,) = endpoints["args"]
    assert f"--endpoints-file={path}" in picker["args"]
    folders = [
        named(each["volumeMounts"], "gateway")["mountPath"] for each in (*spec["initContainers"], picker)
    ]
    assert {str(Path(path).parent)} == set(folders)


def test_clients_find_the_same_service_at_the_same_port(want: Want) -> None:
    routers, envoys = want(), want(gateway="envoy")
    assert envoys["Service/llama"] == routers["Service/llama"]
    (service_port,) = envoys["Service/llama"]["spec"]["ports"]
    envoy = named(pod(envoys)["initContainers"], "envoy")
    assert named(envoy["ports"], "http")["containerPort"] == service_port["targetPort"]
    address = _bootstrap(envoys)["static_resources"]["listeners"][0]["address"]["socket_address"]
    assert address == {"address": "0.0.0.0", "port_value": service_port["targetPort"]}


def test_sidecars_accept_http_only_behind_a_gateway(want: Want) -> None:
    routers, envoys = want(), want(gateway="envoy")
    assert "http" not in str(_sidecar(routers)["ports"])
    assert not any(word.startswith("--http-port") for word in _sidecar(routers)["args"])
    port = named(_sidecar(envoys)["ports"], "http")["containerPort"]
    assert f"--http-port={port}" in _sidecar(envoys)["args"]
    assert _from_routers(routers) == [7000]
    assert _from_routers(envoys) == [7000, port]


def test_envoys_metrics_are_reached_from_inside_the_cluster_only(want: Want) -> None:
    objects = want(gateway="envoy", monitoring={"serviceMonitor": True})
    api, inside = objects["NetworkPolicy/llama-router"]["spec"]["ingress"]
    assert ([port["port"] for port in api["ports"]], "from" in api) == ([8080], False)
    assert [port["port"] for port in inside["ports"]] == [9080, 9902]
    assert inside["from"] == [{"namespaceSelector": {}}]
    assert [port["name"] for port in objects["Service/llama-admin"]["spec"]["ports"]] == ["admin", "envoy"]
    pages = objects["ServiceMonitor/llama"]["spec"]["endpoints"]
    assert {page["port"]: page["path"] for page in pages} == {
        "admin": "/metrics",
        "metrics": "/metrics",
        "envoy": "/stats/prometheus",
    }


def test_envoy_has_no_api_keys_and_no_part_of_the_pool_file(want: Want) -> None:
    spec = pod(want(gateway="envoy", applications=[IDE]))
    envoy, picker = named(spec["initContainers"], "envoy"), spec["containers"][0]
    assert "config" in {mount["name"] for mount in picker["volumeMounts"]}
    assert {mount["name"] for mount in envoy["volumeMounts"]} == {"envoy", "gateway", "tls"}
    assert "--key-secret=ide=apps/ide-keys" in picker["args"]


def test_only_the_picker_has_the_accounts_token(want: Want) -> None:
    spec = pod(want(gateway="envoy"))
    assert spec["automountServiceAccountToken"] is False
    mounting = [
        each["name"]
        for each in (*spec["initContainers"], *spec["containers"])
        if "account" in {mount["name"] for mount in each["volumeMounts"]}
    ]
    assert mounting == ["picker"]
    token, authority, namespace = named(spec["volumes"], "account")["projected"]["sources"]
    assert token["serviceAccountToken"]["path"] == "token"
    assert authority["configMap"]["name"] == "kube-root-ca.crt"
    assert namespace["downwardAPI"]["items"][0]["path"] == "namespace"


@pytest.mark.parametrize(("applications", "open_"), [([], True), ([IDE], False)])
def test_a_pool_with_keys_is_closed_while_no_picker_checks_them(
    want: Want, applications: list[Any], open_: bool
) -> None:
    text = _file(want(gateway="envoy", applications=applications), "envoy.json")
    assert f'"failure_mode_allow":{str(open_).lower()}' in text


def test_envoys_restart_when_their_configuration_changes(want: Want, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _annotation(want(gateway="envoy"))
    monkeypatch.setattr("penstock_runtime.envoy.bootstrap.KEEP_ALIVE_S", 7.0)
    assert _annotation(want(gateway="envoy")) != before


def test_the_processes_accept_their_arguments(want: Want, tmp_path: Path) -> None:
    objects = want(gateway="envoy", applications=[IDE], router={"tls": {"secret": "api-tls"}})
    picker = parse_picker(pod(objects)["containers"][0]["args"])
    assert (picker.ext_authz_port, picker.ext_proc_port, picker.host) == (9002, None, "127.0.0.1")
    assert picker.envoy_admin is not None
    assert picker.endpoints_file is not None
    words = [word for word in _sidecar(objects)["args"] if not word.startswith("--tls")]
    sidecar = parse_sidecar([*words, "--insecure"])
    assert sidecar.http is not None
    assert sidecar.http.port == 7002


@pytest.mark.parametrize("tls", [True, False])
def test_the_real_envoy_accepts_its_configuration(
    want: Want, settings: OperatorSettings, tmp_path: Path, tls: bool
) -> None:
    """All folders of the pod are one of the test's."""
    router = {"tls": {"secret": "api-tls"}} if tls else {}
    objects = want(gateway="envoy", settings=replace(settings, tls=tls), router=router)
    for name, text in objects["ConfigMap/llama-envoy"]["data"].items():
        (tmp_path / name).write_text(_in(tmp_path, text))
    for name, encoded in objects.get("Secret/llama-tls", {"data": {}})["data"].items():
        (tmp_path / name).write_bytes(b64decode(encoded))
    Identity(tmp_path)  # the API's, in place of the replicas' own
    write_endpoints(tmp_path / "endpoints.json", ())
    arguments = named(pod(objects)["initContainers"], "envoy")["args"]
    ran = subprocess.run(
        [envoy_program(), "--mode", "validate", *(_in(tmp_path, word) for word in arguments)],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout.strip().endswith("OK")) == (0, True), ran.stderr


def _in(folder: Path, text: str) -> str:
    for mounted in ("/etc/penstock-envoy", "/etc/penstock-certificate", "/etc/penstock-tls", "/run/penstock"):
        text = text.replace(mounted, str(folder))
    return text


def _file(objects: dict[str, Manifest], name: str) -> str:
    return str(objects["ConfigMap/llama-envoy"]["data"][name])


def _bootstrap(objects: dict[str, Manifest]) -> Any:
    return orjson.loads(_file(objects, "envoy.json"))


def _annotation(objects: dict[str, Manifest]) -> str:
    template = objects["Deployment/llama-router"]["spec"]["template"]
    return str(template["metadata"]["annotations"]["penstock.dev/config"])


def _sidecar(objects: dict[str, Manifest]) -> Any:
    return named(pod(objects, "StatefulSet/llama-replica")["containers"], "sidecar")


def _from_routers(objects: dict[str, Manifest]) -> list[int]:
    """Ports of replicas that the pods in front reach."""
    rule = objects["NetworkPolicy/llama-replica"]["spec"]["ingress"][0]
    return [port["port"] for port in rule["ports"]]


def test_spans_are_sent_to_the_pools_collector(want: Want) -> None:
    tracing = {"otlpUrl": "http://otel.monitoring:4318/v1/traces", "sampling": 0.5}
    traced = _bootstrap(want(gateway="envoy", router={"tracing": tracing}))
    clusters = {each["name"] for each in traced["static_resources"]["clusters"]}
    assert clusters - {
        each["name"] for each in _bootstrap(want(gateway="envoy"))["static_resources"]["clusters"]
    } == {"traces"}
    manager = traced["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    assert manager["tracing"]["random_sampling"] == {"value": 50.0}
