"""Changes of a pool and the pods that they roll, and the time that pods have to stop."""

from collections.abc import Callable, Iterator
from typing import Any, get_args

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_operator.objects.rollout import replica_drain_s, router_drain_s
from penstock_pool import Pool
from penstock_pool.serving_pool import PoolSpec
from penstock_pool.spec import Spec, file_name

MakePool = Callable[..., Pool]
Want = Callable[..., dict[str, Manifest]]

CHAT: dict[str, Any] = {"name": "chat", "slo": {"ttft": "800ms", "tpot": "50ms"}}
BATCH = {"name": "batch", "bestEffort": True}
BEFORE: dict[str, Any] = {
    "model": {"name": "served"},
    "engine": {"type": "vllm", "image": "vllm:1", "timeModel": "llama-3-8b-a100", "speculation": {}},
    "replicas": 2,
    "autoscaling": {"minReplicas": 1, "maxReplicas": 4},
    "tiers": [CHAT, BATCH],
    "applications": [{"name": "ide", "tier": "chat", "keys": {"secret": "ide-keys"}}],
    "ingress": {"host": "a.example", "className": "nginx"},
}
BOTH, REPLICAS, ROUTERS, NONE = {"replica", "router"}, {"replica"}, {"router"}, set[str]()
CASES: list[tuple[str, dict[str, Any], set[str]]] = [
    ("model.name", {"model": {"name": "other"}}, BOTH),
    ("model.source.hub", {"model": {"name": "served", "source": {"hub": "org/m"}}}, REPLICAS),
    (
        "model.source.persistentVolumeClaim",
        {"model": {"name": "served", "source": {"persistentVolumeClaim": "w"}}},
        REPLICAS,
    ),
    ("model.source.image", {"model": {"name": "served", "source": {"image": "w:1"}}}, REPLICAS),
    ("engine.type", {"engine": {"type": "openai"}}, BOTH),
    ("engine.image", {"engine": {"image": "vllm:2"}}, REPLICAS),
    ("engine.args", {"engine": {"args": ["--seed=1"]}}, REPLICAS),
    ("engine.tensorParallelSize", {"engine": {"tensorParallelSize": 2}}, REPLICAS),
    ("engine.resources.limits", {"engine": {"resources": {"limits": {"nvidia.com/gpu": 1}}}}, REPLICAS),
    ("engine.apiKey.secret", {"engine": {"apiKey": {"secret": "engine-key"}}}, REPLICAS),
    ("engine.resources.requests", {"engine": {"resources": {"requests": {"cpu": 1}}}}, REPLICAS),
    ("engine.timeModel", {"engine": {"timeModel": "llama-3-8b-h100"}}, BOTH),
    ("engine.kvCacheTokens", {"engine": {"kvCacheTokens": 100000}}, REPLICAS),
    ("engine.blockTokens", {"engine": {"blockTokens": 32}}, REPLICAS),
    ("engine.prefixCaching", {"engine": {"prefixCaching": True}}, BOTH),
    ("engine.prefixIsolation", {"engine": {"prefixIsolation": "none"}}, ROUTERS),
    ("engine.maxModelLen", {"engine": {"maxModelLen": 4096}}, BOTH),
    ("engine.speculation.maxTokens", {"engine": {"speculation": {"maxTokens": 2}}}, REPLICAS),
    ("engine.speculation.acceptance", {"engine": {"speculation": {"acceptance": 0.5}}}, REPLICAS),
    ("engine.answerPath", {"engine": {"answerPath": "direct"}}, BOTH),
    ("engine.connectTimeout", {"engine": {"connectTimeout": "1s"}}, REPLICAS),
    ("engine.silenceTimeout", {"engine": {"silenceTimeout": "30s"}}, REPLICAS),
    ("engine.profileTimeout", {"engine": {"profileTimeout": "30s"}}, REPLICAS),
    ("engine.podTemplate", {"engine": {"podTemplate": {"spec": {"priorityClassName": "x"}}}}, REPLICAS),
    ("gateway", {"gateway": "envoy", "autoscaling": None}, BOTH),
    ("replicas", {"replicas": 3}, NONE),
    ("autoscaling.minReplicas", {"autoscaling": {"minReplicas": 2}}, NONE),
    ("autoscaling.maxReplicas", {"autoscaling": {"maxReplicas": 8}}, NONE),
    ("autoscaling.targetAttainment", {"autoscaling": {"targetAttainment": 0.9}}, NONE),
    (
        "autoscaling.scaleUp.stabilizationWindow",
        {"autoscaling": {"scaleUp": {"stabilizationWindow": "1s"}}},
        NONE,
    ),
    ("autoscaling.scaleUp.maxStep", {"autoscaling": {"scaleUp": {"maxStep": 1}}}, NONE),
    (
        "autoscaling.scaleDown.stabilizationWindow",
        {"autoscaling": {"scaleDown": {"stabilizationWindow": "1s"}}},
        NONE,
    ),
    ("autoscaling.scaleDown.maxStep", {"autoscaling": {"scaleDown": {"maxStep": 1}}}, NONE),
    ("autoscaling.idleTimeout", {"autoscaling": {"idleTimeout": "1m"}}, NONE),
    ("autoscaling.wakeTimeout", {"autoscaling": {"wakeTimeout": "1m"}}, ROUTERS),
    ("autoscaling.by", {"autoscaling": {"by": "hpa"}}, NONE),
    ("autoscaling.prometheusUrl", {"autoscaling": {"by": "keda", "prometheusUrl": "http://p"}}, NONE),
    ("tiers.name", {"tiers": [CHAT, {**BATCH, "name": "bulk"}]}, BOTH),
    ("tiers.slo.ttft", {"tiers": [{**CHAT, "slo": {"ttft": "1s", "tpot": "50ms"}}, BATCH]}, BOTH),
    ("tiers.slo.tpot", {"tiers": [{**CHAT, "slo": {"ttft": "800ms", "tpot": "60ms"}}, BATCH]}, BOTH),
    (
        "tiers.slo.answerTpot",
        {"tiers": [{**CHAT, "slo": {**CHAT["slo"], "answerTpot": "60ms"}}, BATCH]},
        BOTH,
    ),
    ("tiers.slo.e2e", {"tiers": [{**CHAT, "slo": {"e2e": "60s"}}, BATCH]}, BOTH),
    ("tiers.slo.judge", {"tiers": [{**CHAT, "slo": {**CHAT["slo"], "judge": "max"}}, BATCH]}, BOTH),
    ("tiers.value", {"tiers": [{**CHAT, "value": 2}, BATCH]}, BOTH),
    ("tiers.bestEffort", {"tiers": [CHAT, {"name": "batch", "slo": {"e2e": "60s"}}]}, BOTH),
    ("tiers.allowRequestTargets", {"tiers": [{**CHAT, "allowRequestTargets": True}, BATCH]}, BOTH),
    ("defaultTier", {"defaultTier": "batch"}, ROUTERS),
    ("applications.name", {"applications": [{"name": "cli"}]}, ROUTERS),
    ("applications.tier", {"applications": [{"tier": "batch"}]}, ROUTERS),
    ("applications.allow", {"applications": [{"allow": ["batch"]}]}, ROUTERS),
    ("applications.keys.secret", {"applications": [{"keys": {"secret": "others"}}]}, ROUTERS),
    *(
        (f"applications.limits.{limit}", {"applications": [{"limits": {limit: 9}}]}, ROUTERS)
        for limit in ("concurrentRequests", "requestsPerMinute", "tokensPerMinute")
    ),
    ("requests.allowFields", {"requests": {"allowFields": ["priority"]}}, ROUTERS),
    ("requests.mediaHosts", {"requests": {"mediaHosts": ["*.example"]}}, ROUTERS),
    ("scheduling.policy", {"scheduling": {"policy": "sola"}}, BOTH),
    ("scheduling.maxBatchTokens", {"scheduling": {"maxBatchTokens": 512}}, REPLICAS),
    ("scheduling.maxRunning", {"scheduling": {"maxRunning": 64}}, REPLICAS),
    ("scheduling.maxWaiting", {"scheduling": {"maxWaiting": 64}}, REPLICAS),
    ("scheduling.agingTimeout", {"scheduling": {"agingTimeout": "10s"}}, REPLICAS),
    ("scheduling.deliveryAllowance", {"scheduling": {"deliveryAllowance": "10ms"}}, REPLICAS),
    ("scheduling.drainTimeout", {"scheduling": {"drainTimeout": "20m"}}, REPLICAS),
    ("routing.order", {"routing": {"order": "prefix"}}, ROUTERS),
    ("routing.maxHops", {"routing": {"maxHops": 2}}, ROUTERS),
    ("routing.backup", {"routing": {"backup": "reject"}}, ROUTERS),
    ("routing.maxMoves", {"routing": {"maxMoves": 1}}, ROUTERS),
    ("routing.moveTimeout", {"routing": {"moveTimeout": "5s"}}, ROUTERS),
    ("router.replicas", {"router": {"replicas": 3}}, NONE),
    ("router.maxBodyBytes", {"router": {"maxBodyBytes": 1024}}, ROUTERS),
    ("router.maxHeaderBytes", {"router": {"maxHeaderBytes": 1024}}, ROUTERS),
    ("router.maxSequencesPerRequest", {"router": {"maxSequencesPerRequest": 8}}, ROUTERS),
    ("router.bodyTimeout", {"router": {"bodyTimeout": "1s"}}, ROUTERS),
    ("router.maxInflight", {"router": {"maxInflight": 16}}, ROUTERS),
    ("router.streamBufferBytes", {"router": {"streamBufferBytes": 1024}}, ROUTERS),
    ("router.bufferBytes", {"router": {"bufferBytes": 1048576}}, ROUTERS),
    ("router.writeTimeout", {"router": {"writeTimeout": "10s"}}, ROUTERS),
    ("router.verdictTimeout", {"router": {"verdictTimeout": "1s"}}, ROUTERS),
    ("router.drainTimeout", {"router": {"drainTimeout": "20m"}}, ROUTERS),
    ("router.tls.secret", {"router": {"tls": {"secret": "api-tls"}}}, ROUTERS),
    ("router.image", {"router": {"image": "router:2"}}, ROUTERS),
    ("router.resources.limits", {"router": {"resources": {"limits": {"cpu": 1}}}}, ROUTERS),
    ("router.resources.requests", {"router": {"resources": {"requests": {"cpu": 1}}}}, ROUTERS),
    ("router.podTemplate", {"router": {"podTemplate": {"spec": {"priorityClassName": "x"}}}}, ROUTERS),
    ("ingress.host", {"ingress": {"host": "b.example"}}, NONE),
    ("ingress.kind", {"ingress": {"kind": "HTTPRoute", "className": None, "gateway": {"name": "g"}}}, NONE),
    ("ingress.className", {"ingress": {"className": "traefik"}}, NONE),
    ("ingress.tlsSecret", {"ingress": {"tlsSecret": "cert"}}, NONE),
    ("ingress.annotations", {"ingress": {"annotations": {"a": "b"}}}, NONE),
    ("monitoring.serviceMonitor", {"monitoring": {"serviceMonitor": True}}, NONE),
    ("monitoring.labels", {"monitoring": {"labels": {"a": "b"}}}, NONE),
]
LOCAL_FIELDS = {"applications.keys.file"}
FIELDS_OF_OTHER_CASES = {"ingress.gateway.name", "ingress.gateway.namespace"}
"""Changed together with `ingress.kind`."""
TRACING_FIELDS = {"router.tracing.otlpUrl": {}, "router.tracing.sampling": {"sampling": 0.5}}
"""Fields of pools with Envoys, and the settings of `router.tracing` that set each, beside the URL."""


def changed(change: dict[str, Any]) -> dict[str, Any]:
    """Return BEFORE with a change applied. A value of None removes the field."""
    after = dict(BEFORE)
    for part, value in change.items():
        if part == "applications":
            after[part] = [{**BEFORE[part][0], **value[0]}]
        elif isinstance(value, dict) and part != "model":
            after[part] = {k: v for k, v in {**BEFORE.get(part, {}), **value}.items() if v is not None}
        else:
            after[part] = value
    return after


@pytest.mark.parametrize(("change", "rolled"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_change_rolls_the_pods_that_read_it_and_no_others(
    want: Want, change: dict[str, Any], rolled: set[str]
) -> None:
    before, after = templates(want(**BEFORE)), templates(want(**changed(change)))
    assert {component for component in before if before[component] != after[component]} == rolled


def test_every_field_of_the_schema_has_a_rollout_case() -> None:
    assert set(leaves("", PoolSpec)) == (
        {case[0] for case in CASES} | LOCAL_FIELDS | FIELDS_OF_OTHER_CASES | TRACING_FIELDS.keys()
    )


@pytest.mark.parametrize("tracing", TRACING_FIELDS.values(), ids=TRACING_FIELDS)
def test_tracing_rolls_only_the_envoys(want: Want, tracing: dict[str, Any]) -> None:
    envoys: dict[str, Any] = {**changed({"gateway": "envoy"}), "autoscaling": None}
    url = {"otlpUrl": "http://collector:4318"}
    traced = templates(want(**envoys, router={"tracing": url})) if tracing else templates(want(**envoys))
    after = templates(want(**envoys, router={"tracing": {**url, **tracing}}))
    assert {component for component in traced if traced[component] != after[component]} == ROUTERS


@pytest.mark.parametrize(
    "equivalent",
    [
        {"tiers": [{"name": "chat", "slo": {"ttft": "0.8s", "tpot": "0.05s", "judge": "mean"}}, BATCH]},
        {"scheduling": {"policy": "slos-serve", "maxRunning": 256}},
        {"defaultTier": "chat"},
        {"routing": {"maxHops": 3, "backup": "best-effort"}},
        {"engine": {"speculation": {"maxTokens": 4}, "blockTokens": 16}},
    ],
    ids=["units", "defaults", "the first tier", "routing", "engine"],
)
def test_an_equivalent_spec_rolls_no_pod(want: Want, equivalent: dict[str, Any]) -> None:
    assert templates(want(**changed(equivalent))) == templates(want(**BEFORE))


def test_scaling_to_zero_makes_routers_hold_requests(want: Want) -> None:
    before = templates(want(**BEFORE))
    after = templates(want(**changed({"autoscaling": {"minReplicas": 0}})))
    assert {component for component in before if before[component] != after[component]} == {"router"}


def templates(objects: dict[str, Manifest]) -> dict[str, Any]:
    return {
        "replica": objects["StatefulSet/llama-replica"]["spec"]["template"],
        "router": objects["Deployment/llama-router"]["spec"]["template"],
    }


def leaves(path: str, spec: type[Spec]) -> Iterator[str]:
    for name, field in spec.model_fields.items():
        inner = list(specs(field.annotation)) if name != "ttft" else []
        for each in inner:
            yield from leaves(f"{path}{file_name(name)}.", each)
        if not inner:
            yield f"{path}{file_name(name)}"


def specs(annotation: Any) -> Iterator[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
        return
    for inner in get_args(annotation):
        yield from specs(inner)


def test_replicas_are_replaced_one_at_a_time_and_scaled_together(want: Want) -> None:
    spec = want()["StatefulSet/llama-replica"]["spec"]
    assert spec["updateStrategy"] == {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["minReadySeconds"] > 0


def test_a_new_router_is_ready_before_an_old_one_stops(want: Want) -> None:
    spec = want()["Deployment/llama-router"]["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


@pytest.mark.parametrize(
    ("tiers", "max_model_len", "drain_s"),
    [
        ([{"name": "a", "slo": {"e2e": "90s"}}], 8192, 90),
        ([{"name": "a", "slo": {"ttft": "1s", "tpot": "50ms"}}], 1000, 51),
        ([{"name": "a", "slo": {"ttft": {"slowdown": 5}, "tpot": "50ms"}}], 1000, 50),
        ([{"name": "a", "slo": {"tpot": "20ms", "answerTpot": "60ms"}}], 1000, 60),
        ([{"name": "a", "slo": {"ttft": "1s", "tpot": "100ms"}}], 8192, 600),
        ([{"name": "a", "slo": {"ttft": "1s"}}], 8192, 600),
        ([{"name": "a", "slo": {"e2e": "10s"}}], 8192, 30),
        ([BATCH], 8192, 30),
        ([{"name": "a", "slo": {"e2e": "40s"}}, {"name": "b", "slo": {"e2e": "70s"}}, BATCH], 8192, 70),
    ],
    ids=["e2e", "TPOT", "slowdown", "two TPOTs", "long", "no TPOT", "short", "best effort", "the longest"],
)
def test_a_pod_has_time_to_finish_the_longest_request_of_its_tiers(
    make_pool: MakePool, tiers: list[Any], max_model_len: int, drain_s: float
) -> None:
    engine = {"type": "simulated", "timeModel": "llama-3-8b-a100", "maxModelLen": max_model_len}
    pool = make_pool(tiers=tiers, engine=engine)
    assert (replica_drain_s(pool), router_drain_s(pool)) == (drain_s, drain_s)


def test_a_drain_timeout_is_the_minimum_drain(make_pool: MakePool) -> None:
    pool = make_pool(scheduling={"drainTimeout": "30m"}, router={"drainTimeout": "20m"})
    assert (replica_drain_s(pool), router_drain_s(pool)) == (1800, 1200)


def test_the_kubelet_waits_longer_than_the_processes_do(want: Want) -> None:
    objects = want(tiers=[{"name": "a", "slo": {"e2e": "100s"}}])
    for template in templates(objects).values():
        grace_s = template["spec"]["terminationGracePeriodSeconds"]
        reported = [word for each in template["spec"]["containers"] for word in each["args"]]
        waits_s = [
            float(word.partition("=")[2]) for word in reported if word.startswith(("--drain", "--lame"))
        ]
        assert grace_s > sum(waits_s) >= 100
