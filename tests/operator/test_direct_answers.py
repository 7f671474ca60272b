"""With `answerPath: direct`, and only then, routers reach engines, and engines require tickets."""

from collections.abc import Callable
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest

Want = Callable[..., dict[str, Manifest]]

VLLM: dict[str, Any] = {"type": "vllm", "timeModel": "llama-3-8b-a100", "apiKey": {"secret": "engine-key"}}
DIRECT = VLLM | {"answerPath": "direct"}
ENGINE_PORT = 8000


def ports_for_routers(objects: dict[str, Manifest]) -> list[int]:
    routers = objects["NetworkPolicy/llama-replica"]["spec"]["ingress"][0]
    assert routers["from"][0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "router"
    return [port["port"] for port in routers["ports"]]


def environment(objects: dict[str, Manifest], workload: str, container: str) -> dict[str, Any]:
    pod = objects[workload]["spec"]["template"]["spec"]
    containers = [*pod.get("initContainers", ()), *pod["containers"]]
    (found,) = [one for one in containers if one["name"] == container]
    return {variable["name"]: variable.get("value") for variable in found.get("env", ())}


@pytest.mark.parametrize(("engine", "reached"), [(VLLM, False), (DIRECT, True)])
def test_routers_reach_engines_only_where_the_pool_says_so(
    want: Want, engine: dict[str, Any], reached: bool
) -> None:
    assert (ENGINE_PORT in ports_for_routers(want(engine=engine))) is reached


@pytest.mark.parametrize("gateway", ["envoy", "inferencePool"])
def test_nobody_else_in_front_of_replicas_does(want: Want, gateway: str) -> None:
    assert ENGINE_PORT not in ports_for_routers(want(engine=DIRECT, gateway=gateway))


@pytest.mark.parametrize(("engine", "required"), [(VLLM, None), (DIRECT, "required")])
def test_an_engine_that_routers_reach_requires_tickets(
    want: Want, engine: dict[str, Any], required: str | None
) -> None:
    variables = environment(want(engine=engine), "StatefulSet/llama-replica", "engine")
    assert variables.get("PENSTOCK_TICKETS") == required


@pytest.mark.parametrize(("engine", "has_key"), [(VLLM, False), (DIRECT, True)])
def test_routers_have_the_engine_s_key_only_if_they_need_it(
    want: Want, engine: dict[str, Any], has_key: bool
) -> None:
    variables = environment(want(engine=engine), "Deployment/llama-router", "router")
    assert ("PENSTOCK_ENGINE_API_KEY" in variables) is has_key


def test_all_processes_read_the_same_answer_path(want: Want) -> None:
    objects = want(engine=DIRECT)
    for name in ("ConfigMap/llama-replica", "ConfigMap/llama-router"):
        assert "answerPath: direct" in objects[name]["data"]["pool.yaml"]
