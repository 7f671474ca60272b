"""ServingPools as people meet them: explained, listed, scaled."""

import json

import pytest
import yaml
from kube.api import Pools
from kube.kubectl import Kubectl
from valid_pool import VALID_POOL, with_change

pytestmark = pytest.mark.usefixtures("definition")


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (
            "servingpool",
            ["ServingPool describes replicas that serve one model and meet the SLOs of all requests"],
        ),
        (
            "pool.spec.tiers.slo",
            [
                "FIELD: slo <Object>",
                "Latency targets; absent for best effort.",
                "tpot <string> Time per output token after the first, as `judge` measures it. Like `50ms`.",
                "judge <string> enum: mean, window, max",
            ],
        ),
        (
            "pool.spec.tiers.slo.ttft",
            [
                "Time to first token, from when the router has read the request: a duration, or",
                "slowdown <number> -required- Multiple of the prompt's prefill time on an idle replica",
            ],
        ),
        ("pool.spec.scheduling", ["policy <string> enum: annealing, slos-serve, sola, accelgen"]),
        ("pool.status.conditions", ["observedGeneration <integer> The metadata.generation of the spec"]),
    ],
)
def test_explain_shows_the_documentation(kubectl: Kubectl, path: str, lines: list[str]) -> None:
    text = " ".join(kubectl.out("explain", path).split())
    assert [line for line in lines if line not in text] == []


def test_kubectl_get_shows_a_pools_state(kubectl: Kubectl, pools: Pools) -> None:
    pools.create(VALID_POOL).raise_for_status()
    condition = {
        "type": "Ready",
        "status": "True",
        "reason": "Serving",
        "message": "",
        "lastTransitionTime": "2026-01-02T03:04:05Z",
    }
    observed = {"replicas": 3, "readyReplicas": 2, "policy": "slos-serve", "attainment": "98.2%"}
    pools.change("demo", {"status": observed | {"conditions": [condition]}}, "status").raise_for_status()
    head, row = kubectl.out("get", "pools").splitlines()
    assert head.split() == ["NAME", "READY", "REPLICAS", "SERVING", "POLICY", "ATTAINMENT", "AGE"]
    assert row.split()[:-1] == ["demo", "True", "3", "2", "slos-serve", "98.2%"]
    wide = kubectl.out("get", "pool", "demo", "--output=wide").splitlines()[1]
    assert wide.split()[6:9] == ["m", "simulated", "Serving"]


@pytest.mark.parametrize("name", ["pool", "pools", "servingpool", "servingpools.penstock.dev", "penstock"])
def test_a_pool_has_short_names(kubectl: Kubectl, pools: Pools, name: str) -> None:
    pools.create(VALID_POOL).raise_for_status()
    assert kubectl.out("get", name, "--output=name").split() == ["servingpool.penstock.dev/demo"]


def test_scale_changes_only_the_replicas(kubectl: Kubectl, pools: Pools) -> None:
    before = pools.create(VALID_POOL).raise_for_status().json()["spec"]
    pools.change("demo", {"status": {"replicas": 2, "selector": "penstock.dev/pool=demo"}}, "status")
    scale = json.loads(kubectl.out("get", "--raw", pools.path_of("demo", "scale")))
    assert scale["spec"] == {"replicas": 2}
    assert scale["status"] == {"replicas": 2, "selector": "penstock.dev/pool=demo"}
    kubectl.out("scale", "pool/demo", "--replicas=0")
    assert kubectl.get("pool", "demo")["spec"] == before | {"replicas": 0}


def test_scale_stays_within_the_autoscaling_bounds(kubectl: Kubectl, pools: Pools) -> None:
    document = with_change("spec/autoscaling", {"minReplicas": 1, "maxReplicas": 4})
    pools.create(document).raise_for_status()
    kubectl.out("scale", "pool/demo", "--replicas=4")
    done = kubectl("scale", "pool/demo", "--replicas=5")
    assert done.code == 1
    assert "spec.replicas: Invalid value" in done.err
    assert "is above autoscaling's maxReplicas" in done.err


def test_a_status_is_written_separately_from_the_spec(kubectl: Kubectl, pools: Pools) -> None:
    pools.create(VALID_POOL).raise_for_status()
    pools.change("demo", {"spec": {"replicas": 9}, "status": {"replicas": 2}}, "status").raise_for_status()
    pool = kubectl.get("pool", "demo")
    assert (pool["spec"]["replicas"], pool["status"], pool["metadata"]["generation"]) == (
        2,
        {"replicas": 2},
        1,
    )


def test_two_field_managers_may_each_own_a_tier(kubectl: Kubectl) -> None:
    pool = yaml.safe_dump(VALID_POOL)
    kubectl.out("apply", "--server-side", "--field-manager=one", "--filename=-", stdin=pool)
    other = {"name": "night", "bestEffort": True}
    mine = {key: VALID_POOL[key] for key in ("apiVersion", "kind", "metadata")} | {"spec": {"tiers": [other]}}
    kubectl.out("apply", "--server-side", "--field-manager=two", "--filename=-", stdin=yaml.safe_dump(mine))
    tiers = kubectl.get("pool", "demo")["spec"]["tiers"]
    assert [tier["name"] for tier in tiers] == ["chat", "coder", "batch", "night"]


def test_kubectl_apply_names_the_invalid_field_of_a_file(kubectl: Kubectl) -> None:
    text = yaml.safe_dump(VALID_POOL).replace("tpot: 50ms", "tpot: '50'")
    done = kubectl("apply", "--filename=-", stdin=text)
    assert done.code == 1
    assert 'spec.tiers[1].slo.tpot: Invalid value: "string": "50" has no unit; write 50ms or 50s' in done.err
