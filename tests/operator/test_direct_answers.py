"""With `answerPath: direct`, and only then, routers and Envoys reach engines, which require tickets."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.settings import OperatorSettings
from penstock_router.options import parse as parse_router
from penstock_sidecar.options import parse as parse_sidecar
from penstock_simulator.main import parser as engine_parser

Want = Callable[..., dict[str, Manifest]]

VLLM: dict[str, Any] = {"type": "vllm", "timeModel": "llama-3-8b-a100", "apiKey": {"secret": "engine-key"}}
DIRECT = VLLM | {"answerPath": "direct"}
ENGINE_PORT = 8000


def ports_for_routers(objects: dict[str, Manifest]) -> list[int]:
    routers = objects["NetworkPolicy/llama-replica"]["spec"]["ingress"][0]
    assert routers["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    return [port["port"] for port in routers["ports"]]


def container_of(objects: dict[str, Manifest], workload: str, container: str) -> Any:
    pod = objects[workload]["spec"]["template"]["spec"]
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    (found,) = [one for one in containers if one["name"] == container]
    return found


def environment(objects: dict[str, Manifest], workload: str, container: str) -> dict[str, Any]:
    found = container_of(objects, workload, container)
    return {variable["name"]: variable.get("value") for variable in found.get("env", ())}


@pytest.mark.parametrize(("engine", "reached"), [(VLLM, False), (DIRECT, True)])
def test_routers_reach_engines_only_if_the_pool_permits(
    want: Want, engine: dict[str, Any], reached: bool
) -> None:
    assert (ENGINE_PORT in ports_for_routers(want(engine=engine))) is reached


@pytest.mark.parametrize(("gateway", "reached"), [("envoy", True), ("inferencePool", False)])
def test_envoys_reach_the_engines_port_and_gateways_of_others_do_not(
    want: Want, gateway: str, reached: bool
) -> None:
    assert (ENGINE_PORT in ports_for_routers(want(engine=DIRECT, gateway=gateway))) is reached


@pytest.mark.parametrize(
    ("engine", "gateway", "asks"),
    [
        (DIRECT, "envoy", True),
        (DIRECT, "router", False),
        (DIRECT, "inferencePool", False),
        (VLLM, "envoy", False),
    ],
)
def test_engines_behind_an_envoy_ask_their_sidecars(
    want: Want, engine: dict[str, Any], gateway: str, asks: bool
) -> None:
    objects = want(engine=engine, gateway=gateway)
    arguments = container_of(objects, "StatefulSet/llama-replica", "engine")["args"]
    variables = environment(objects, "StatefulSet/llama-replica", "engine")
    assert ("penstock_vllm.gateway_middleware.SidecarAdmission" in arguments) is asks
    assert (variables.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE") == "75") is asks


def test_a_simulated_engine_behind_an_envoy_asks_its_sidecar(want: Want) -> None:
    simulated = {"type": "simulated", "timeModel": "llama-3-8b-a100", "answerPath": "direct"}
    arguments = container_of(want(engine=simulated, gateway="envoy"), "StatefulSet/llama-replica", "engine")[
        "args"
    ]
    assert engine_parser().parse_args(arguments).gateway_requests


def test_an_envoy_accepts_the_certificates_of_sidecars_and_engines(want: Want) -> None:
    names = str(want(engine=DIRECT, gateway="envoy")["ConfigMap/llama-envoy"]["data"])
    for name in ("llama-replicas.apps.svc", "engine.llama-replicas.apps.svc"):
        assert f'"exact":"{name}"' in names


@pytest.mark.parametrize(("engine", "required"), [(VLLM, None), (DIRECT, "required")])
def test_an_engine_that_routers_reach_requires_tickets(
    want: Want, engine: dict[str, Any], required: str | None
) -> None:
    variables = environment(want(engine=engine), "StatefulSet/llama-replica", "engine")
    assert variables.get("PENSTOCK_TICKETS") == required


@pytest.mark.parametrize(("engine", "has_key"), [(VLLM, False), (DIRECT, True)])
def test_routers_have_the_engines_key_only_if_they_need_it(
    want: Want, engine: dict[str, Any], has_key: bool
) -> None:
    variables = environment(want(engine=engine), "Deployment/llama-router", "router")
    assert ("PENSTOCK_ENGINE_API_KEY" in variables) is has_key


def test_all_processes_read_the_same_answer_path(want: Want) -> None:
    objects = want(engine=DIRECT)
    for name in ("ConfigMap/llama-replica", "ConfigMap/llama-router"):
        assert "answerPath: direct" in objects[name]["data"]["pool.yaml"]


ENGINE = ("StatefulSet/llama-replica", "engine")
SIDECAR = ("StatefulSet/llama-replica", "sidecar")
ROUTER = ("Deployment/llama-router", "router")
NAME = "engine.llama-replicas.apps.svc"


@pytest.mark.parametrize("kind", ["vllm", "simulated"])
def test_engines_that_answer_routers_serve_tls_with_their_own_certificate(want: Want, kind: str) -> None:
    objects = want(engine=DIRECT | {"type": kind})
    engine = container_of(objects, *ENGINE)
    folder = "/etc/penstock-tls"
    flags = [f"--ssl-certfile={folder}/engine.crt", f"--ssl-keyfile={folder}/engine.key"]
    assert {*flags, "--enable-ssl-refresh"} <= set(engine["args"])
    assert {"name": "WATCHFILES_FORCE_POLLING", "value": "true"} in engine["env"]
    (mount,) = [mount for mount in engine["volumeMounts"] if mount["mountPath"] == folder]
    volumes = objects["StatefulSet/llama-replica"]["spec"]["template"]["spec"]["volumes"]
    (secret,) = [volume["secret"] for volume in volumes if volume["name"] == mount["name"]]
    assert secret["secretName"] == "llama-tls"
    assert [item["key"] for item in secret["items"]] == ["engine.crt", "engine.key"]
    assert {"engine.crt", "engine.key"} <= objects["Secret/llama-tls"]["data"].keys()
    assert [engine[probe]["httpGet"]["scheme"] for probe in ("startupProbe", "livenessProbe")] == [
        "HTTPS"
    ] * 2


def test_a_simulated_engine_understands_its_arguments(want: Want) -> None:
    args = container_of(want(engine=DIRECT | {"type": "simulated"}), *ENGINE)["args"]
    assert str(engine_parser().parse_args(args).ssl_certfile) == "/etc/penstock-tls/engine.crt"


def test_sidecars_and_routers_verify_an_engine_by_its_own_name(
    want: Want, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathlib.Path.is_file", lambda path: True)
    objects = want(engine=DIRECT)
    sidecar = parse_sidecar(container_of(objects, *SIDECAR)["args"])
    assert sidecar.engine == "https://127.0.0.1:8000"
    assert sidecar.engine_tls is not None
    assert (str(sidecar.engine_tls.ca), sidecar.engine_tls.server_name) == ("/etc/penstock-tls/ca.crt", NAME)
    router = parse_router(container_of(objects, *ROUTER)["args"])
    assert router.engine_server_name == NAME


@pytest.mark.parametrize(("engine", "tls"), [(VLLM, True), (DIRECT, False)], ids=["by the sidecar", "no TLS"])
def test_other_engines_are_reached_in_the_clear(
    want: Want, settings: OperatorSettings, engine: dict[str, Any], tls: bool
) -> None:
    objects = want(engine=engine, settings=dataclasses.replace(settings, tls=tls))
    found = container_of(objects, *ENGINE)
    assert not any("ssl" in word for word in found["args"])
    assert not any(variable["name"] == "WATCHFILES_FORCE_POLLING" for variable in found["env"])
    assert "scheme" not in found["livenessProbe"]["httpGet"]
    assert "--engine=http://127.0.0.1:8000" in container_of(objects, *SIDECAR)["args"]
    assert not any(
        "engine-tls" in word for kind in (SIDECAR, ROUTER) for word in container_of(objects, *kind)["args"]
    )
