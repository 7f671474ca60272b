"""A real API server's message about an invalid pool names the field and a valid value."""

from collections.abc import Iterator
from typing import Any

import pytest
from kube.api import Pools, refusals_in
from penstock_pool.cel import VALIDATIONS
from penstock_pool.crd import definition
from valid_pool import REMOVED, VALID_POOL, with_change

OBJECT, STRING = 'Invalid value: "object": ', 'Invalid value: "string": '
NAME_RULE = "lower-case letters, digits and inner dashes, a letter first, at most 40"
TIER_HINT = "write the name of one in tiers, such as chat"

TABLE: list[tuple[str, object, list[str]]] = [
    (
        "metadata/name",
        "p" * 41,
        [f"<nil>: {OBJECT}metadata.name: is not a valid name; {NAME_RULE}"],
    ),
    (
        "metadata/name",
        "4090-pool",
        [f"<nil>: {OBJECT}metadata.name: is not a valid name; {NAME_RULE}"],
    ),
    (
        "spec/model/source",
        {},
        [f"spec.model.source: {OBJECT}needs exactly one of hub, persistentVolumeClaim, image"],
    ),
    (
        "spec/model/source",
        {"hub": "org/m", "image": "m:1"},
        [f"spec.model.source: {OBJECT}needs exactly one of hub, persistentVolumeClaim, image"],
    ),
    (
        "spec/engine",
        {"type": "vllm", "tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": 1}}},
        [
            f"spec.engine.resources.limits: {OBJECT}nvidia.com/gpu differs from tensorParallelSize, the "
            "number of GPUs of one replica: write the same number, leave nvidia.com/gpu out, or write "
            '"0" for an engine without such GPUs'
        ],
    ),
    (
        "spec/engine",
        {"type": "vllm", "prefixCaching": False, "args": ["-v", "--enable_prefix_caching"]},
        [f"spec.engine.prefixCaching: {OBJECT}is also set by an argument in args; remove one of them"],
    ),
    (
        "spec/engine/timeModel",
        REMOVED,
        [
            f"spec.engine.timeModel: {OBJECT}a simulated engine cannot be measured; write for example "
            "llama-3-8b-a100"
        ],
    ),
    (
        "spec/engine/type",
        "openai",
        [
            "spec.engine.image: Required value: missing; a cluster needs the engine's container image, "
            "for example vllm/vllm-openai:v0.33.0"
        ],
    ),
    (
        "spec/engine/type",
        "vlm",
        ['spec.engine.type: Unsupported value: "vlm": supported values: "vllm", "openai", "simulated"'],
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 1},
        [f"spec.replicas: {OBJECT}is above autoscaling's maxReplicas; at most that"],
    ),
    (
        "spec/autoscaling",
        {"minReplicas": 2, "maxReplicas": 1},
        [
            f"spec.replicas: {OBJECT}is above autoscaling's maxReplicas; at most that",
            f"spec.autoscaling.minReplicas: {OBJECT}is above maxReplicas; at most that",
        ],
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "by": "hpa", "targetAttainment": 0.99},
        [
            "spec.autoscaling.targetAttainment: Forbidden: would not be used: by: hpa reads only averages "
            "over replicas; write by: penstock, or remove it"
        ],
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "by": "keda"},
        ["spec.autoscaling.prometheusUrl: Required value: missing; by: keda needs the URL of a Prometheus"],
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "prometheusUrl": "http://prometheus:9090"},
        ["spec.autoscaling.prometheusUrl: Forbidden: would not be used; write by: keda, or remove it"],
    ),
    (
        "spec/autoscaling",
        {"minReplicas": 0, "maxReplicas": 8, "by": "hpa"},
        [
            f"spec.autoscaling.minReplicas: {OBJECT}0 is not possible with by: hpa; write by: penstock, "
            "by: keda, or 1"
        ],
    ),
    (
        "spec/tiers/3",
        {"name": "chat", "bestEffort": True},
        ['spec.tiers[3]: Duplicate value: {"name":"chat"}'],
    ),
    (
        "spec/tiers/2/slo",
        {"tpot": "1s"},
        ["spec.tiers[2].slo: Forbidden: best effort has no SLO; remove slo, or bestEffort: true"],
    ),
    (
        "spec/tiers/1/slo",
        REMOVED,
        ["spec.tiers[1].slo: Required value: missing; write targets, or bestEffort: true"],
    ),
    (
        "spec/tiers/1/slo/tpot",
        "50",
        [f'spec.tiers[1].slo.tpot: {STRING}"50" has no unit; write 50ms or 50s'],
    ),
    (
        "spec/tiers/1/slo/tpot",
        "fast",
        [f'spec.tiers[1].slo.tpot: {STRING}"fast" is not a duration; write for example 800ms, 1.5s or 2m'],
    ),
    (
        "spec/tiers/1/slo/tpot",
        "0.0ms",
        [f'spec.tiers[1].slo.tpot: {STRING}"0.0ms" is zero; it has to be positive'],
    ),
    (
        "spec/tiers/1/slo/e2e",
        "24h1ms",
        [f'spec.tiers[1].slo.e2e: {STRING}"24h1ms" is longer than a day; at most 24h'],
    ),
    (
        "spec/tiers/0/slo/e2e",
        "99ms",
        [f"spec.tiers[0].slo.e2e: {OBJECT}is shorter than tpot; the last token is not due before the others"],
    ),
    (
        "spec/tiers/0/slo",
        {"answerTpot": "2s", "e2e": "1s"},
        [
            f"spec.tiers[0].slo.e2e: {OBJECT}is shorter than answerTpot; the last token is not due before "
            "the others"
        ],
    ),
    (
        "spec/tiers/0/slo",
        {"judge": "max"},
        [
            '<nil>: Invalid value: "": "spec.tiers[0].slo" must validate at least one schema (anyOf)',
            "spec.tiers[0].slo.ttft: Required value",
        ],
    ),
    (
        "spec/tiers/0/slo/ttft/slowdown",
        0.5,
        [
            "spec.tiers[0].slo.ttft.slowdown: Invalid value: 0.5: spec.tiers[0].slo.ttft.slowdown in body "
            "should be greater than or equal to 1"
        ],
    ),
    ("spec/tiers/0/slo/ttft", {}, ["spec.tiers[0].slo.ttft.slowdown: Required value"]),
    (
        "spec/tiers/0/slo/ttft",
        800,
        [
            '<nil>: Invalid value: "": "spec.tiers[0].slo.ttft" must validate at least one schema (anyOf)',
            'spec.tiers[0].slo.ttft: Unsupported value: 800: supported values: "800ms", "1.5s", '
            '"{\\"slowdown\\":5}"',
        ],
    ),
    (
        "spec/tiers/0/slo/ttft",
        "800",
        [
            'spec.tiers[0].slo.ttft: Invalid value: "800": spec.tiers[0].slo.ttft in body should match '
            "'^([0-9]+([.][0-9]+)?(ns|us|µs|ms|s|m|h))+$'"
        ],
    ),
    (
        "spec/tiers/1/value",
        0,
        ["spec.tiers[1].value: Invalid value: 0: spec.tiers[1].value in body should be greater than 0"],
    ),
    ("spec/defaultTier", "chatt", [f'spec.defaultTier: {OBJECT}"chatt" is not a tier; {TIER_HINT}']),
    (
        "spec/applications/0/tier",
        "x",
        [f"spec.applications: {OBJECT}the tier of an application does not exist; {TIER_HINT}"],
    ),
    (
        "spec/applications/0/allow/1",
        "x",
        [f"spec.applications: {OBJECT}a tier that an application allows does not exist; {TIER_HINT}"],
    ),
    (
        "spec/applications/0/keys",
        {},
        [f"spec.applications[0].keys: {OBJECT}needs exactly one of secret, file"],
    ),
    (
        "spec/applications/0/keys",
        {"file": "keys.txt"},
        [
            "spec.applications[0].keys.file: Forbidden: is for local tools; a cluster reads keys from a "
            "Secret of its own: write secret"
        ],
    ),
    (
        "spec/scheduling/policy",
        "distserve",
        ['spec.scheduling.policy: Unsupported value: "distserve": supported values: "annealing", "slos-ser'],
    ),
    (
        "spec/routing/backup",
        "offload",
        ['spec.routing.backup: Unsupported value: "offload": supported values: "best-effort", "reject"'],
    ),
    (
        "spec/router",
        {"maxBodyBytes": 60 * 2**20 + 1},
        [
            'spec.router.maxBodyBytes: Invalid value: "integer": is longer than one message between router '
            "and replica can be; at most 62914560"
        ],
    ),
    (
        "spec/router",
        {"tracing": {"otlpUrl": "http://otel:4318/v1/traces"}},
        [
            "spec.router.tracing: Forbidden: would not be used: only Envoy sends spans; write gateway: "
            "envoy, or remove it"
        ],
    ),
    (
        "spec/engine",
        {"type": "openai", "image": "any:1", "timeModel": "auto", "answerPath": "direct"},
        [
            f"spec.engine.answerPath: {OBJECT}direct needs an engine that checks the sidecar's tickets, of "
            "type vllm or simulated"
        ],
    ),
    (
        "spec",
        {**VALID_POOL["spec"], "gateway": "envoy", "autoscaling": {"minReplicas": 0, "maxReplicas": 4}},
        [
            f"spec.autoscaling.minReplicas: {OBJECT}only routers hold requests while there is no replica; "
            "write gateway: router, or 1"
        ],
    ),
    (
        "spec",
        {**VALID_POOL["spec"], "gateway": "inferencePool", "ingress": {"host": "a.example"}},
        [
            f"spec.ingress.kind: {OBJECT}an Ingress cannot route to an InferencePool; write kind: HTTPRoute, "
            "or remove it"
        ],
    ),
    (
        "spec",
        {**VALID_POOL["spec"], "gateway": "inferencePool", "router": {"tls": {"secret": "a"}}},
        ["spec.router.tls: Forbidden: would not be used: the Gateway has its own certificate; remove it"],
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "kind": "HTTPRoute"},
        [
            "spec.ingress.gateway: Required value: missing; kind: HTTPRoute needs the Gateway that it "
            "attaches to"
        ],
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "gateway": {"name": "public"}},
        ["spec.ingress.gateway: Forbidden: would not be used; write kind: HTTPRoute, or remove it"],
    ),
    (
        "spec/ingress",
        {
            "host": "a.example.com",
            "kind": "HTTPRoute",
            "gateway": {"name": "public"},
            "className": "traefik",
            "tlsSecret": "tls",
        },
        [
            "spec.ingress.className: Forbidden: would not be used; write kind: Ingress, or remove it",
            "spec.ingress.tlsSecret: Forbidden: would not be used; the Gateway has its own, or write kind: "
            "Ingress",
        ],
    ),
    ("spec/engine/args", ["-v"] * 257, ["spec.engine.args: Too many: 257: must have at most 256 items"]),
    ("spec/tiers", [], ["spec.tiers: Invalid value: 0: spec.tiers in body should have at least 1 items"]),
    ("spec/model", REMOVED, ["spec.model: Required value"]),
]


@pytest.mark.parametrize(("path", "value", "lines"), TABLE)
def test_an_invalid_pool_is_refused_with_a_message(
    pools: Pools, path: str, value: object, lines: list[str]
) -> None:
    reported = pools.refusals(with_change(path, value))
    assert [line[: len(output)] for line, output in zip(reported, lines, strict=True)] == lines


def test_the_valid_pool_is_accepted(pools: Pools) -> None:
    assert pools.accepts(VALID_POOL)


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("spec/replica", "spec.replica"),
        ("spec/tiers/0/slo/ttf", "spec.tiers[0].slo.ttf"),
        ("spec/engine/podTemplate/nodeSelector", "spec.engine.podTemplate.nodeSelector"),
    ],
)
def test_an_unknown_field_is_named(pools: Pools, path: str, field: str) -> None:
    (line,) = pools.refusals(with_change(path, {"a": "b"}))
    assert f'unknown field "{field}"' in line


def test_a_model_keeps_its_name(pools: Pools) -> None:
    pools.create(VALID_POOL).raise_for_status()
    answer = pools.change("demo", {"spec": {"model": {"name": "other"}}})
    assert refusals_in(answer) == [
        'spec.model.name: Forbidden: cannot change from "m": replicas are replaced one by one, and meanwhile '
        "clients would get answers of both models; create a second pool"
    ]
    pools.change("demo", {"spec": {"model": {"source": {"hub": "org/m"}}}}).raise_for_status()


def test_a_pool_at_all_its_bounds_is_still_validated(pools: Pools) -> None:
    """The API server limits the cost of CEL rules, and the largest valid pool stays below the limit."""
    document = with_change("spec/tiers", [])
    spec = document["spec"]
    names = [f"{place:02}-{'t' * 60}" for place in range(16)]
    spec["tiers"] = [{"name": name, "slo": {"ttft": "800ms", "tpot": "50ms", "e2e": "30s"}} for name in names]
    spec["defaultTier"] = names[-1]
    spec["applications"] = [
        {"name": f"a{place}", "tier": names[-1], "allow": names[:15], "keys": {"secret": f"s{place}"}}
        for place in range(128)
    ]
    assert pools.accepts(document)
    spec["applications"][-1]["allow"].append("none")
    (line,) = pools.refusals(document)
    assert "a tier that an application allows does not exist" in line


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec/engine/podTemplate/spec/volumes", [{"name": "v" * 1000}] * 4000, "Request entity too large"),
        ("spec/engine/args", ["a" * 4097], "spec.engine.args[0]: Too long"),
        ("spec/model/name", "m" * 1025, "spec.model.name: Too long"),
        ("spec/tiers/1/slo/tpot", "1" * 33 + "ns", "spec.tiers[1].slo.tpot: Too long"),
    ],
)
def test_oversized_values_are_refused(pools: Pools, path: str, value: object, field: str) -> None:
    assert pools.refusals(with_change(path, value))[0].startswith(field)


def rules(schema: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield every rule of a schema, at any depth."""
    yield from schema.get(VALIDATIONS, ())
    inner = [schema[kind] for kind in ("items", "additionalProperties") if kind in schema]
    for field in [*schema.get("properties", {}).values(), *inner]:
        yield from rules(field)


def test_every_rule_has_an_invalid_pool_above() -> None:
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    output = "\n".join(line for _, _, lines in TABLE for line in lines)
    untested = {
        rule["message"] for rule in rules(schema) if "message" in rule and rule["message"] not in output
    }
    assert untested == set()
