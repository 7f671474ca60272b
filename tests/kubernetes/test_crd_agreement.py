"""Local tools and the cluster accept the same pools: one schema, read by pydantic and by Kubernetes.

Where they cannot agree is listed below, each with its reason.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kube.api import Pools
from penstock_pool import PoolError, parse_pool
from penstock_pool.pod_spec import Resources
from valid_pool import REMOVED, VALID_POOL, with_change

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").rglob("*.yaml"))

VALUES: dict[str, list[object]] = {
    "metadata/name": ["a", "p" * 40, "p" * 41, "0a", "a-", "A", "a.b", ""],
    "spec/model/name": ["org/m", "", "m" * 1024, "m" * 1025, 7],
    "spec/model/source": [{"hub": "a/b"}, {"persistentVolumeClaim": "w"}, {"image": "i"}, {}, {"hub": ""}],
    "spec/engine/type": ["simulated", "vlm", 1],
    "spec/engine/timeModel": ["llama-3-8b-h100", "auto", "mine", REMOVED],
    "spec/engine/tensorParallelSize": [1, 8, 0, 1.5, "2", 2**31 - 1, 2**31, 10**30],
    "spec/engine": [
        {"type": "vllm", "tensorParallelSize": spans, "args": args, "resources": {"limits": limits}}
        for spans in (1, 2)
        for limits in ({}, {"nvidia.com/gpu": 2}, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": "0"})
        for args in ([], ["-v"], ["-v", "--pipeline-parallel-size=2"], ["-pp", "2"])
    ],
    "spec/engine/prefixCaching": [True, False, "true", 1, None],
    "spec/engine/speculation": [{}, {"acceptance": 0}, {"acceptance": 1}, {"maxTokens": 17}, {"x": 1}],
    "spec/engine/args": [[], ["-v"], [1], "-v", ["-v"] * 256, ["-v"] * 257],
    "spec/engine/resources": [
        {"limits": {"nvidia.com/gpu": 1}},
        {"requests": {"memory": "40Gi", "cpu": "500m"}},
        {"limits": {"memory": "40 GB"}},
        {"limits": {"memory": 1.5}},
        {"limits": {"cpu": True}},
        {"limits": {"cpu": -1}},
        {"limits": {"cpu": "-1"}},
        {"limit": {}},
    ],
    "spec/engine/podTemplate": [{}, {"spec": {"x": [1]}}, {"metadata": {}}, {"nodeSelector": {}}, "gpu"],
    "spec/replicas": [0, 1, 1000, 1001, -1, "2", 1.5, True],
    "spec/autoscaling": [
        {"maxReplicas": 8},
        {"minReplicas": 0, "maxReplicas": 2},
        {"minReplicas": 3, "maxReplicas": 8},
        {"minReplicas": 3, "maxReplicas": 2},
        {"maxReplicas": 0},
        {},
        {"maxReplicas": 8, "targetAttainment": 0},
        {"maxReplicas": 8, "targetAttainment": 1},
        {"maxReplicas": 8, "scaleUp": {"stabilizationWindow": "0s", "maxStep": 2}},
        {"maxReplicas": 8, "scaleDown": {"stabilizationWindow": "5"}},
        {"maxReplicas": 8, "idleTimeout": "0s"},
        {"maxReplicas": 1},
        {"maxReplicas": 8, "by": "hpa"},
        {"maxReplicas": 8, "by": "hpa", "targetAttainment": 0.99},
        {"minReplicas": 0, "maxReplicas": 8, "by": "hpa"},
        {"maxReplicas": 8, "by": "keda"},
        {"maxReplicas": 8, "by": "keda", "prometheusUrl": "http://prometheus:9090"},
        {"maxReplicas": 8, "by": "keda", "prometheusUrl": "prometheus"},
        {"maxReplicas": 8, "prometheusUrl": "http://prometheus:9090"},
    ],
    "spec/tiers": [[], "chat", [{"name": "chat", "bestEffort": True}], [{}], [None]],
    "spec/tiers/0/name": ["chat", "Chat", "coder", "t" * 63, "t" * 64, ""],
    "spec/tiers/0/value": [1, 0.5, 0, -1, "1", 1e300],
    "spec/tiers/0/bestEffort": [True, False, "yes", 1],
    "spec/tiers/0/slo": [{}, {"judge": "max"}, {"e2e": "30s"}, {"answerTpot": "100ms"}, {"tpots": "1s"}, "x"],
    "spec/tiers/0/slo/ttft": [
        "800ms",
        "1m30s",
        "0.5s",
        "0ms",
        "0.0s",
        "50",
        "",
        "fast",
        "1 s",
        "-1s",
        50,
        0.5,
        True,
        [],
        ["1s"],
        {},
        {"slowdown": 1},
        {"slowdown": 0.9},
        {"slowdown": "5"},
        {"slowdown": 5, "x": 1},
        {"x": 5},
    ],
    "spec/tiers/0/slo/tpot": ["50ms", "250us", "50", "0s", "25h", "1e3ms", "50 ms", "", 50, "1" * 33 + "ns"],
    "spec/tiers/0/slo/e2e": ["30s", "99ms", "24h", "24h1ns", "1440m"],
    "spec/tiers/0/slo/judge": ["mean", "median", 1],
    "spec/defaultTier": ["batch", "x", "", REMOVED],
    "spec/applications": [[], [{"name": "a"}], "ide"],
    "spec/applications/0/name": ["ide", "Batch jobs", "i" * 64],
    "spec/applications/0/tier": ["batch", "x", REMOVED],
    "spec/applications/0/allow": [[], ["chat", "chat"], ["x"], ["chat"] * 17],
    "spec/applications/0/keys": [{"secret": "a.b"}, {"secret": "A_b"}, {}, {"secret": "a", "file": "b"}],
    "spec/applications/0/limits": [
        {},
        {"concurrentRequests": 1, "requestsPerMinute": 2, "tokensPerMinute": 2**31 - 1},
        {"concurrentRequests": 0},
        {"requestsPerMinute": "60"},
        {"tokensPerMinute": 1.5},
        {"tokens": 1},
    ],
    "spec/requests": [
        {},
        {"allowFields": ["priority", "kv_transfer_params"], "mediaHosts": ["a.b", "*.c", "*"]},
        {"allowFields": ["temperature"]},
        {"allowFields": ["priority"] * 10},
        {"mediaHosts": ["https://a.b"]},
        {"mediaHosts": ["a.*"]},
        {"mediaHosts": ["A.b"]},
        {"mediaHosts": [""]},
    ],
    "spec/scheduling": [
        {},
        {"policy": "sola"},
        {"policy": "x"},
        {"maxRunning": 0},
        {"agingTimeout": "0s"},
        [],
    ],
    "spec/routing": [
        {},
        {"order": "best-fit", "maxHops": 1},
        {"order": "random"},
        {"backup": "offload"},
        {"backup": "reject"},
        {"pool": "other"},
    ],
    "spec/router": [
        {},
        {"replicas": 0},
        {"tracing": {"otlpUrl": "http://otel:4318/v1/traces"}},
        {"image": "r:1", "resources": {"requests": {"cpu": 1}}, "podTemplate": {"spec": {}}},
        {"bodyTimeout": "1000h"},
        {"maxBodyBytes": 0},
        {"maxBodyBytes": 60 * 2**20},
        {"maxBodyBytes": 60 * 2**20 + 1},
        {"maxSequencesPerRequest": 33},
    ],
    "spec/gateway": ["router", "envoy", "inferencePool", "nginx", 1],
    "spec": [
        {**VALID_POOL["spec"], "gateway": gateway, "autoscaling": {"minReplicas": least, "maxReplicas": 2}}
        for gateway in ("router", "envoy", "inferencePool")
        for least in (0, 1)
    ]
    + [
        {**VALID_POOL["spec"], "gateway": "envoy", "router": {"tracing": tracing}}
        for tracing in (
            {"otlpUrl": "http://otel:4318/v1/traces", "sampling": 0.1},
            {"otlpUrl": "otel:4318"},
            {"otlpUrl": "https://otel", "sampling": 0},
            {"sampling": 1},
        )
    ]
    + [
        {**VALID_POOL["spec"], "gateway": "inferencePool", **more}
        for more in (
            {"router": {"tls": {"secret": "a"}}},
            {"ingress": {"host": "a.b"}},
            {"ingress": {"host": "a.b", "kind": "HTTPRoute", "gateway": {"name": "g"}}},
        )
    ],
    "spec/ingress": [
        {"host": "a.example.com"},
        {"host": "*.example.com", "className": "traefik", "tlsSecret": "tls", "annotations": {"a/b": "c"}},
        {"host": "a b"},
        {},
        {"host": "a.b", "kind": "Route"},
        {"host": "a.b", "kind": "HTTPRoute"},
        {"host": "a.b", "kind": "HTTPRoute", "gateway": {"name": "g", "namespace": "n"}},
        {"host": "a.b", "kind": "HTTPRoute", "gateway": {"name": "g"}, "tlsSecret": "tls"},
        {"host": "a.b", "gateway": {"name": "g"}},
    ],
    "spec/monitoring": [{}, {"serviceMonitor": True, "labels": {"release": "x"}}, {"labels": {"a": "b c"}}],
    "spec/quux": [1],
}
"""For each field values that are right, wrong, and just at the bounds."""

DIFFERENCES: dict[str, tuple[str, object, bool]] = {
    # name: field, value, whether local tools accept it; the cluster does the opposite
    "key files are beside a pool file, and a cluster has none": (
        "spec/applications/0/keys",
        {"file": "keys.txt"},
        True,
    ),
    "a cluster starts engines; local tools may be given the URL of one": (
        "spec/engine",
        {"type": "openai"},
        True,
    ),
    "rules cannot see a ttft, which has two types: how it compares": (
        "spec/tiers/0/slo",
        {"ttft": "40s", "e2e": "30s"},
        False,
    ),
    "rules cannot see a ttft, which has two types: how long it is": ("spec/tiers/0/slo/ttft", "25h", False),
    "keys of a mapping have no pattern there: labels": (
        "spec/monitoring",
        {"labels": {"no name": "x"}},
        False,
    ),
    "keys of a mapping have no pattern there: resources": (
        "spec/engine/resources",
        {"limits": {"no name": 1}},
        False,
    ),
    "null is as good as absent there, where there is a default": ("spec/routing/backup", None, False),
    "a whole number may be written with a point there": ("spec/routing/maxHops", 2.0, False),
    "time is counted in nanoseconds there": ("spec/tiers/0/slo/tpot", "0.1ns", True),
}


def locally_fine(document: dict[str, Any]) -> bool:
    """Return whether local tools accept the pool."""
    try:
        parse_pool(copy.deepcopy(document), "pool.yaml")
    except PoolError:
        return False
    return True


@pytest.mark.parametrize("path", VALUES)
def test_schema_and_models_accept_the_same_pools(pools: Pools, path: str) -> None:
    documents = [with_change(path, value) for value in VALUES[path]]
    here, there = map(locally_fine, documents), map(pools.accepts, documents)
    disagreed = [value for value, a, b in zip(VALUES[path], here, there, strict=True) if a != b]
    assert disagreed == []


CHANGES = st.sampled_from([(path, value) for path, values in VALUES.items() for value in values])


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.lists(CHANGES, min_size=2, max_size=4))
def test_schema_and_models_agree_after_several_changed_fields(
    pools: Pools, changes: list[tuple[str, object]]
) -> None:
    document = VALID_POOL
    for path, value in changes:
        try:
            document = with_change(path, value, document)
        except (KeyError, IndexError, TypeError, AttributeError):  # an earlier change took its place away
            continue
    assert locally_fine(document) == pools.accepts(document)


@pytest.mark.parametrize(("path", "value", "fine_here"), DIFFERENCES.values(), ids=DIFFERENCES)
def test_known_differences_of_schema_and_models(
    pools: Pools, path: str, value: object, fine_here: bool
) -> None:
    document = with_change(path, value)
    assert (locally_fine(document), pools.accepts(document)) == (fine_here, not fine_here)


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_an_example_is_stored_with_the_same_meaning(pools: Pools, file: Path) -> None:
    for document in yaml.safe_load_all(file.read_text()):
        if document["kind"] == "ServingPool":
            stored = pools.create(document).raise_for_status().json()
            assert parse_pool(stored, "stored").spec == parse_pool(document, "file").spec


def test_the_api_server_stores_the_defaults_that_local_tools_assume(pools: Pools) -> None:
    spec = parse_pool(pools.create(VALID_POOL).raise_for_status().json(), "stored").spec
    parts = [spec, spec.engine, spec.scheduling, spec.routing, spec.router, spec.monitoring, *spec.tiers]
    assumed = [
        (type(part).__name__, field, value)
        for part in parts
        for field in type(part).model_fields.keys() - part.model_fields_set
        if (value := getattr(part, field)) not in (None, (), {}, Resources())
    ]
    assert assumed == []
