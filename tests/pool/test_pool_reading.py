"""Reading of valid pool files, and the applications of API keys."""

from pathlib import Path
from typing import Any

import pytest
from penstock_core.domain.slo import Judge, Slo
from penstock_pool import PoolError, load_keys, load_pool, parse_pool
from penstock_pool.tier_spec import SloSpec

FULL = """
apiVersion: penstock.dev/v1alpha1
kind: ServingPool
metadata: {name: llama3-8b, labels: {team: ml}, uid: 1-2-3}
spec:
  model: {name: meta-llama/Llama-3.1-8B-Instruct, source: {hub: meta-llama/Llama-3.1-8B-Instruct}}
  engine:
    type: vllm
    image: vllm/vllm-openai:v0.33.0
    args: [--enable-prefix-caching]
    tensorParallelSize: 1
    resources: {limits: {nvidia.com/gpu: "1"}}
    timeModel: llama-3-8b-a100
    kvCacheTokens: 43296
    speculation: {maxTokens: 4, acceptance: 0.7}
    podTemplate: {spec: {nodeSelector: {gpu: a100}}}
  replicas: 2
  autoscaling: {minReplicas: 1, maxReplicas: 8}
  tiers:
  - {name: chat,  slo: {ttft: {slowdown: 5}, tpot: 100ms}, value: 1}
  - {name: coder, slo: {ttft: 800ms, tpot: 50ms, e2e: 30s, judge: window}, allowRequestTargets: true}
  - {name: batch, bestEffort: true}
  defaultTier: chat
  applications:
  - {name: ide, tier: coder, allow: [batch], keys: {file: keys.txt}}
  - {name: web, tier: chat, keys: {file: web.txt}}
  scheduling: {policy: slos-serve}
  routing: {order: round-robin, maxHops: 3, backup: best-effort}
  router: {replicas: 2, bodyTimeout: 1m30s}
status: {readyReplicas: 2}
"""


@pytest.fixture
def full(tmp_path: Path) -> Path:
    path = tmp_path / "pool.yaml"
    path.write_text(FULL)
    return path


def test_tiers_are_converted_to_the_cores(full: Path) -> None:
    tiers = load_pool(full).tiers()
    assert tiers["chat"].slo == Slo(ttft_slowdown=5.0, tpot_s=0.1)
    assert tiers["coder"].slo == Slo(ttft_s=0.8, tpot_s=0.05, e2e_s=30.0, judge=Judge.WINDOW)
    assert tiers["coder"].allow_request_targets
    assert tiers["batch"].best_effort
    assert not tiers["chat"].best_effort


def test_an_answer_may_have_its_own_tpot_target(full: Path) -> None:
    full.write_text(FULL.replace("tpot: 100ms", "tpot: 50ms, answerTpot: 100ms"))
    assert load_pool(full).tiers()["chat"].slo == Slo(ttft_slowdown=5.0, tpot_s=0.05, answer_tpot_s=0.1)
    full.write_text(FULL.replace("{ttft: {slowdown: 5}, tpot: 100ms}", "{answerTpot: 100ms}"))
    assert load_pool(full).tiers()["chat"].slo == Slo(answer_tpot_s=0.1)


def test_settings_have_defaults_and_units(full: Path) -> None:
    spec = load_pool(full).spec
    assert spec.router.body_timeout_s == 90.0
    assert spec.engine.block_tokens == 16
    assert spec.scheduling.max_batch_tokens == 8192
    assert spec.engine.kv_cache_tokens == 43296


@pytest.mark.parametrize(
    ("replicas", "least", "first"), [("", 2, 2), ("", 0, 1), ("replicas: 1", 2, 2), ("replicas: 3", 2, 3)]
)
def test_a_pool_with_autoscaling_starts_with_its_minimum_by_default(
    full: Path, replicas: str, least: int, first: int
) -> None:
    bounds = f"{{minReplicas: {least}, maxReplicas: 8}}"
    full.write_text(
        FULL.replace("  replicas: 2\n", f"  {replicas}\n", 1).replace(
            "{minReplicas: 1, maxReplicas: 8}", bounds
        )
    )
    assert load_pool(full).spec.initial_replicas == first


def test_the_attainment_target_has_a_default(full: Path) -> None:
    autoscaling = load_pool(full).spec.autoscaling
    assert autoscaling is not None
    assert autoscaling.scaling().target_attainment == 0.99


def test_the_first_tier_is_the_default() -> None:
    pool = parse_pool(
        {
            "apiVersion": "penstock.dev/v1alpha1",
            "kind": "ServingPool",
            "metadata": {"name": "p"},
            "spec": {
                "model": {"name": "m"},
                "engine": {"type": "openai"},
                "tiers": [{"name": "b", "bestEffort": True}, {"name": "a", "bestEffort": True}],
            },
        },
        "p",
    )
    assert pool.spec.default_tier == "b"


def test_every_example_is_a_pool() -> None:
    examples = Path(__file__).resolve().parents[2] / "examples"
    names = [load_pool(path).metadata.name for path in sorted(examples.rglob("*.yaml"))]
    assert "demo" in names
    assert "minimal" in names


def test_every_field_of_a_pool_has_a_description() -> None:
    """The cluster's schema is generated from these models, and its reader has nothing else."""
    pool = parse_pool.__globals__["Pool"]
    schema: dict[str, Any] = pool.model_json_schema(by_alias=True)
    objects = {name: part for name, part in schema["$defs"].items() if "properties" in part}
    silent = [
        f"{name}.{field}"
        for name, part in objects.items()
        for field, about in part["properties"].items()
        if "description" not in about
    ]
    assert silent == []


def test_keys_belong_to_their_application(full: Path) -> None:
    (full.parent / "keys.txt").write_text("# the editors\nsk-ide-1\n\n  sk-ide-2  \n")
    (full.parent / "web.txt").write_text("sk-web\n")
    keys = load_keys(load_pool(full), full.parent)
    assert {key: application.name for key, application in keys.items()} == {
        "sk-ide-1": "ide",
        "sk-ide-2": "ide",
        "sk-web": "web",
    }
    assert keys["sk-ide-1"].may_use("batch")
    assert not keys["sk-web"].may_use("batch")


def test_keys_that_cannot_be_used_have_a_line_each(full: Path) -> None:
    (full.parent / "web.txt").write_text("\n# none yet\n")
    with pytest.raises(PoolError) as error:
        load_keys(load_pool(full), full.parent)
    assert error.value.lines == [
        f'llama3-8b: spec.applications[0].keys.file: "{full.parent}/keys.txt" cannot be read: '
        "No such file or directory",
        f'llama3-8b: spec.applications[1].keys.file: "{full.parent}/web.txt" has no keys; write one per line',
    ]


def test_a_key_of_two_applications_is_refused(full: Path) -> None:
    for name in ("keys.txt", "web.txt"):
        (full.parent / name).write_text("sk-same\n")
    with pytest.raises(PoolError, match=r"applications\[1\].keys: has a key of ide too") as error:
        load_keys(load_pool(full), full.parent)
    assert "sk-same" not in str(error.value)


def test_keys_in_a_secret_need_a_cluster(full: Path) -> None:
    full.write_text(
        FULL.replace("{file: keys.txt}", "{secret: ide-keys}").replace("file: web.txt", "secret: web")
    )
    with pytest.raises(PoolError, match=r'keys\.secret: "ide-keys" is in a cluster'):
        load_keys(load_pool(full), full.parent)


def test_an_e2e_target_may_equal_the_ttft_target() -> None:
    slo = SloSpec.model_validate({"ttft": "800ms", "e2e": "800ms"})
    assert (slo.ttft, slo.e2e_s) == (0.8, 0.8)
