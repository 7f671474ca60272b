"""Each invalid field of a pool file has one line: where, the given value, and valid values."""

from functools import partial
from pathlib import Path

import pytest
from penstock_core.policies import POLICIES
from penstock_pool import PoolError, load_pool, parse_pool
from valid_pool import REMOVED, with_change

POOL = with_change("spec/applications/0/keys", {"file": "keys.txt"})
change = partial(with_change, pool=POOL)


def lines_of(document: object) -> list[str]:
    with pytest.raises(PoolError) as error:
        parse_pool(document, "pool.yaml")
    return error.value.lines


def test_the_valid_pool_is_valid() -> None:
    assert parse_pool(POOL, "pool.yaml").spec.default_tier == "chat"


TABLE: list[tuple[str, object, str]] = [
    (
        "spec/engine",
        {"type": "vllm", "tensorParallelSize": 2, "resources": {"limits": {"nvidia.com/gpu": "1"}}},
        "spec.engine.resources.limits: nvidia.com/gpu differs from tensorParallelSize, the number of GPUs of "
        "one replica: write the same number, leave nvidia.com/gpu out, or write "
        '"0" for an engine without such GPUs',
    ),
    (
        "spec/engine",
        {"type": "vllm", "prefixCaching": True, "args": ["--no-enable-prefix-caching"]},
        "spec.engine.prefixCaching: is also set by an argument in args; remove one of them",
    ),
    ("spec/engine/prefixCaching", "true", 'spec.engine.prefixCaching: "true" is neither true nor false'),
    ("spec/tiers/1/slo/tpot", 50, 'spec.tiers[1].slo.tpot: "50" has no unit; write 50ms or 0.05s'),
    ("spec/tiers/1/slo/tpot", "50", 'spec.tiers[1].slo.tpot: "50" has no unit; write 50ms or 0.05s'),
    ("spec/tiers/1/slo/tpot", "0ms", 'spec.tiers[1].slo.tpot: "0ms" is zero; it has to be positive'),
    (
        "spec/tiers/1/slo/tpot",
        True,
        "spec.tiers[1].slo.tpot: true is not a duration; write for example 800ms, 1.5s or 2m",
    ),
    (
        "spec/tiers/1/slo/e2e",
        "-1s",
        'spec.tiers[1].slo.e2e: "-1s" is not a duration; write for example 800ms, 1.5s or 2m',
    ),
    (
        "spec/tiers/0/slo/ttft/slowdown",
        0.5,
        "spec.tiers[0].slo.ttft.slowdown: 0.5 is too small; at least 1.0",
    ),
    (
        "spec/tiers/0/slo/ttft/slowdown",
        float("nan"),
        "spec.tiers[0].slo.ttft.slowdown: NaN is not a finite number",
    ),
    (
        "spec/tiers/0/slo/judge",
        "windw",
        'spec.tiers[0].slo.judge: "windw" is not known; one of mean, window, max; did you mean window?',
    ),
    (
        "spec/tiers/0/slo",
        {"judge": "max"},
        "spec.tiers[0].slo: has no target; write at least one of ttft, tpot, answerTpot, e2e",
    ),
    (
        "spec/tiers/0/sloo",
        {},
        "spec.tiers[0].sloo: unknown field; did you mean slo?",
    ),
    (
        "spec/routing/quux",
        1,
        "spec.routing.quux: unknown field; fields here are order, maxHops, backup, maxMoves, moveTimeout",
    ),
    (
        "spec/tiers/2/slo",
        {"tpot": "1s"},
        "spec.tiers[2].slo: best effort has no SLO; remove slo, or bestEffort: true",
    ),
    ("spec/tiers/1/slo", REMOVED, "spec.tiers[1].slo: missing; write targets, or bestEffort: true"),
    ("spec/tiers/1/value", 0, "spec.tiers[1].value: 0 is too small; must be above 0.0"),
    ("spec/tiers/2/bestEffort", "yes", 'spec.tiers[2].bestEffort: "yes" is neither true nor false'),
    (
        "spec/tiers/3",
        {"name": "chat", "bestEffort": True},
        'spec.tiers[3].name: "chat" is already spec.tiers[0]; names are unique',
    ),
    (
        "spec/applications/0/name",
        "Batch jobs",
        'spec.applications[0].name: "Batch jobs" is not a valid name; lower-case letters, digits and inner '
        "dashes, at most 63",
    ),
    ("spec/tiers", [], "spec.tiers: a list is empty; at least one entry"),
    ("spec/tiers", "chat", 'spec.tiers: "chat" is not a list'),
    (
        "spec/tiers/1",
        "coder",
        'spec.tiers[1]: "coder" is not a mapping of name, slo, value, bestEffort, allowRequestTargets',
    ),
    (
        "spec/defaultTier",
        "chatt",
        'spec.defaultTier: "chatt" is not a tier; one of chat, coder, batch; did you mean chat?',
    ),
    (
        "spec/applications/0/tier",
        "x",
        'spec.applications[0].tier: "x" is not a tier; one of chat, coder, batch',
    ),
    (
        "spec/applications/0/allow/0",
        "bach",
        'spec.applications[0].allow[0]: "bach" is not a tier; one of chat, coder, batch; did you mean batch?',
    ),
    (
        "spec/applications/0/keys",
        {},
        "spec.applications[0].keys: needs exactly one of secret, file",
    ),
    (
        "spec/engine/type",
        "vlm",
        'spec.engine.type: "vlm" is not known; one of vllm, openai, simulated; did you mean vllm?',
    ),
    (
        "spec/engine/timeModel",
        "auto",
        "spec.engine.timeModel: a simulated engine cannot be measured; write for example llama-3-8b-a100",
    ),
    (
        "spec/engine/speculation",
        {"acceptance": 1},
        "spec.engine.speculation.acceptance: 1 is too large; must be below 1.0",
    ),
    ("spec/replicas", -1, "spec.replicas: -1 is too small; at least 0"),
    ("spec/replicas", 1001, "spec.replicas: 1001 is too large; at most 1000"),
    ("spec/replicas", "2", 'spec.replicas: "2" is not a whole number'),
    ("spec/replicas", 1.5, "spec.replicas: 1.5 is not a whole number"),
    (
        "spec/autoscaling",
        {"minReplicas": 4, "maxReplicas": 2},
        "spec.autoscaling.minReplicas: 4 is above maxReplicas 2; at most that",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 1},
        "spec.replicas: 2 is above autoscaling's maxReplicas 1; at most that",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "by": "keda"},
        "spec.autoscaling.prometheusUrl: missing; by: keda needs the URL of a Prometheus",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "prometheusUrl": "http://prometheus:9090"},
        "spec.autoscaling.prometheusUrl: would not be used; write by: keda, or remove it",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "by": "keda", "prometheusUrl": "prometheus"},
        'spec.autoscaling.prometheusUrl: "prometheus" is not a URL; write for example '
        "http://prometheus.monitoring:9090",
    ),
    (
        "spec/autoscaling",
        {"minReplicas": 0, "maxReplicas": 8, "by": "hpa"},
        "spec.autoscaling.minReplicas: 0 is not possible with by: hpa; write by: penstock, by: keda, or 1",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "by": "hpa", "targetAttainment": 0.99},
        "spec.autoscaling.targetAttainment: would not be used: by: hpa reads only averages over replicas; "
        "write by: penstock, or remove it",
    ),
    (
        "spec/autoscaling",
        {"maxReplicas": 8, "targetAttainment": 99},
        "spec.autoscaling.targetAttainment: 99 is too large; at most 1.0",
    ),
    (
        "spec/gateway",
        "nginx",
        'spec.gateway: "nginx" is not known; one of router, envoy, inferencePool',
    ),
    (
        "spec",
        {**POOL["spec"], "gateway": "inferencePool", "ingress": {"host": "a.example"}},
        "spec.ingress.kind: an Ingress cannot route to an InferencePool; write kind: HTTPRoute, or remove it",
    ),
    (
        "spec/router",
        {"tracing": {"otlpUrl": "http://otel:4318/v1/traces"}},
        "spec.router.tracing: would not be used: only Envoy sends spans; write gateway: envoy, or remove it",
    ),
    (
        "spec",
        {**POOL["spec"], "gateway": "inferencePool", "router": {"tls": {"secret": "a"}}},
        "spec.router.tls: would not be used: the Gateway has its own certificate; remove it",
    ),
    (
        "spec",
        {**POOL["spec"], "gateway": "envoy", "autoscaling": {"minReplicas": 0, "maxReplicas": 4}},
        "spec.autoscaling.minReplicas: only routers hold requests while there is no replica; "
        "write gateway: router, or 1",
    ),
    (
        "spec/ingress",
        {"host": "llama3.example.com/v1"},
        'spec.ingress.host: "llama3.example.com/v1" is not a host name; write for example llama3.example.com',
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "kind": "HTTPRoute"},
        "spec.ingress.gateway: missing; kind: HTTPRoute needs the Gateway that it attaches to",
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "gateway": {"name": "public"}},
        "spec.ingress.gateway: would not be used; write kind: HTTPRoute, or remove it",
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "kind": "HTTPRoute", "gateway": {"name": "g"}, "className": "traefik"},
        "spec.ingress.className: would not be used; write kind: Ingress, or remove it",
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "kind": "HTTPRoute", "gateway": {"name": "g"}, "tlsSecret": "tls"},
        "spec.ingress.tlsSecret: would not be used; the Gateway has its own, or write kind: Ingress",
    ),
    (
        "spec/ingress",
        {"host": "a.example.com", "annotations": {"no name": "x"}},
        'spec.ingress.annotations.no name: "no name" is not a label name; write for example release or '
        "example.com/team",
    ),
    (
        "spec/monitoring",
        {"labels": {"release": "kube prometheus"}},
        'spec.monitoring.labels.release: "kube prometheus" is not a label value; letters, digits, inner '
        "dashes, dots and underscores",
    ),
    (
        "spec/engine/resources",
        {"limits": {"memory": "40 GB"}},
        'spec.engine.resources.limits.memory: "40 GB" is not a quantity; write for example 40Gi, 500m or 1',
    ),
    (
        "spec/router/podTemplate",
        {"nodeSelector": {"gpu": "a100"}},
        'spec.router.podTemplate: a mapping has a field "nodeSelector"; '
        "a pod's template has metadata and spec",
    ),
    (
        "spec/engine/podTemplate",
        {"spec": "gpu"},
        "spec.engine.podTemplate: a mapping has a spec that is not a mapping; write it as in a Deployment's "
        "template",
    ),
    (
        "spec/tiers/1/slo/e2e",
        "500ms",
        "spec.tiers[1].slo.e2e: is shorter than ttft; the last token is not due before the others",
    ),
    (
        "spec/applications/0/keys",
        {"secret": "Ide_Keys"},
        'spec.applications[0].keys.secret: "Ide_Keys" is not a valid name; lower-case letters, digits and '
        "inner dashes, dots between parts",
    ),
    (
        "spec/applications/0/name",
        "i" * 64,
        f'spec.applications[0].name: "{"i" * 56}… is too long; at most 63 characters',
    ),
    (
        "metadata/name",
        "p" * 41,
        f'metadata.name: "{"p" * 41}" is too long; at most 40 characters',
    ),
    (
        "metadata/name",
        "8b",
        'metadata.name: "8b" is not a valid name; lower-case letters, digits and inner dashes, a letter '
        "first, at most 40",
    ),
    (
        "spec/engine/args",
        ["x"] * 257,
        "spec.engine.args: a list has 257 entries; at most 256",
    ),
    (
        "spec/scheduling/policy",
        "slo-serve",
        f'spec.scheduling.policy: "slo-serve" is not a policy; one of {", ".join(POLICIES)}; '
        "did you mean slos-serve?",
    ),
    (
        "spec/scheduling/policy",
        "distserve",
        'spec.scheduling.policy: "distserve" is not a policy of a replica: it splits a fleet into prefill '
        "and decode GPUs; `penstock capacity --policy distserve` measures it",
    ),
    (
        "spec/routing/order",
        "random",
        'spec.routing.order: "random" is not a routing order; one of round-robin, least-loaded, lmetric, '
        "best-fit, class-affinity, prefix",
    ),
    (
        "spec/routing",
        {"backup": "offload"},
        'spec.routing.backup: "offload" is not supported: routers do not send requests to another pool; '
        "write best-effort or reject",
    ),
    (
        "spec/routing",
        {"backup": "offloads"},
        'spec.routing.backup: "offloads" is not known; one of best-effort, reject',
    ),
    (
        "spec/router",
        {"maxBodyBytes": 60 * 2**20 + 1},
        "spec.router.maxBodyBytes: 62914561 is longer than one message between router and replica can be; "
        "at most 62914560",
    ),
    (
        "spec/model/source",
        {"hub": "org/m", "image": "m:1"},
        "spec.model.source: needs exactly one of hub, persistentVolumeClaim, image",
    ),
    (
        "spec/tiers/1/slo/tpot",
        "1" * 33 + "ns",
        f'spec.tiers[1].slo.tpot: "{"1" * 33}ns" is not a duration; write for example 800ms, 1.5s or 2m',
    ),
    ("spec/routing/maxHops", 0, "spec.routing.maxHops: 0 is too small; at least 1"),
    (
        "spec/router/bodyTimeout",
        "1000h",
        'spec.router.bodyTimeout: "1000h" is longer than a day; at most 24h',
    ),
    ("kind", "Deployment", 'kind: "Deployment" is not supported; write ServingPool'),
    ("kind", REMOVED, "kind: missing; write kind: ServingPool"),
    (
        "apiVersion",
        "penstock.dev/v1",
        'apiVersion: "penstock.dev/v1" is not supported; write penstock.dev/v1alpha1',
    ),
    ("spec/model", REMOVED, "spec.model: missing; the model that is served"),
    ("metadata", None, "metadata: null is not a mapping of name"),
]


@pytest.mark.parametrize(("path", "value", "line"), TABLE)
def test_an_invalid_field_has_one_line(path: str, value: object, line: str) -> None:
    assert lines_of(change(path, value)) == [f"pool.yaml: {line}"]


def test_every_invalid_field_is_reported_at_once() -> None:
    document = change("spec/replicas", -1)
    document["spec"]["tiers"][1]["slo"]["tpot"] = 50
    document["spec"]["defaultTier"] = "nobody"
    assert [line.split(": ")[1] for line in lines_of(document)] == [
        "spec.replicas",
        "spec.tiers[1].slo.tpot",
        "spec.defaultTier",
    ]


def test_a_missing_field_is_reported_with_an_example() -> None:
    (line,) = lines_of(change("spec/tiers/0/slo/ttft", {}))
    assert line.startswith("pool.yaml: spec.tiers[0].slo.ttft.slowdown: missing; ")
    assert line.endswith("for example 5")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "is empty; a pool starts with apiVersion: penstock.dev/v1alpha1, kind: ServingPool"),
        ("- a\n- b\n", "is a list; a pool has apiVersion, kind, metadata, spec"),
        ("just text\n", 'is "just text"; a pool has apiVersion, kind, metadata, spec'),
        ("a: [1,\n", "line 2, column 1: expected the node content, but found '<stream end>'"),
        ("a: 1\n  b: 2\n", "line 2, column 4: mapping values are not allowed here"),
        ("a: 1\nb: 2\na: 3\n", 'line 3, column 1: "a" is given twice; once is allowed'),
        ("a: 1\n---\nb: 1\n", "of its 2 documents none is a ServingPool; exactly one must be"),
        (
            "kind: ServingPool\n---\nkind: ServingPool\n---\nkind: Secret\n",
            "of its 3 documents 2 are a ServingPool; exactly one must be",
        ),
        (
            "a: !!python/object:os.system x\n",
            "line 1, column 4: could not determine a constructor for the tag ",
        ),
    ],
)
def test_an_invalid_file_is_reported_with_the_place(tmp_path: Path, text: str, line: str) -> None:
    path = tmp_path / "pool.yaml"
    path.write_text(text)
    with pytest.raises(PoolError) as error:
        load_pool(path)
    assert len(error.value.lines) == 1
    assert error.value.lines[0].startswith(f"{path}: {line}")


def test_a_missing_or_binary_file_is_one_line(tmp_path: Path) -> None:
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00")
    for path, output in ((tmp_path / "none.yaml", "no such file"), (binary, "is not UTF-8 text: byte 0")):
        with pytest.raises(PoolError) as error:
            load_pool(path)
        assert error.value.lines == [f"{path}: {output}"]


def test_a_character_that_is_invalid_in_yaml_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "pool.yaml"
    file.write_text("kind: \x01")
    with pytest.raises(PoolError, match="is not YAML: unacceptable character #x0001"):
        load_pool(file)
