"""The pool file that each component reads."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from penstock_operator.manifests.manifest import Manifest
from penstock_pool import Pool, load_pool

Want = Callable[..., dict[str, Manifest]]
Read = Callable[..., Pool]
SPEC: dict[str, Any] = {
    "engine": {
        "type": "simulated",
        "timeModel": "llama-3-8b-a100",
        "speculation": {},
        "maxModelLen": 4096,
        "podTemplate": {"spec": {"nodeSelector": {"a": "b"}}},
    },
    "tiers": [
        {"name": "chat", "slo": {"ttft": {"slowdown": 5}, "tpot": "33ms"}, "value": 2},
        {"name": "batch", "bestEffort": True},
    ],
    "defaultTier": "batch",
    "applications": [
        {"name": "ide", "tier": "chat", "allow": ["batch"], "keys": {"secret": "ide-keys"}},
    ],
    "scheduling": {"policy": "sola", "agingTimeout": "7s"},
    "routing": {"order": "best-fit", "maxHops": 2},
    "router": {"verdictTimeout": "2s", "replicas": 3},
}


@pytest.fixture
def read(want: Want, tmp_path: Path) -> Read:
    """Return the ConfigMap data of a component's process."""

    def loaded(component: str, **spec: Any) -> Pool:
        file = tmp_path / "pool.yaml"
        file.write_text(want(**spec)[f"ConfigMap/llama-{component}"]["data"]["pool.yaml"])
        return load_pool(file)

    return loaded


def test_replicas_read_their_part_of_the_file_as_written(read: Read, make_pool: Callable[..., Pool]) -> None:
    pool, whole = read("replica", **SPEC).spec, make_pool(**SPEC).spec
    assert (pool.model, pool.tiers, pool.scheduling) == (whole.model, whole.tiers, whole.scheduling)
    assert pool.engine == whole.engine.model_copy(update={"pod_template": None})


def test_routers_read_their_part_of_the_file_as_written(read: Read, make_pool: Callable[..., Pool]) -> None:
    pool, whole = read("router", **SPEC).spec, make_pool(**SPEC).spec
    assert (pool.tiers, pool.default_tier, pool.routing) == (whole.tiers, "batch", whole.routing)
    assert pool.router == whole.router.model_copy(update={"replicas": 2})
    assert pool.scheduling.policy == "sola"
    (application,) = pool.applications
    assert (application.name, application.tier, application.allow) == ("ide", "chat", ("batch",))


@pytest.mark.parametrize(
    ("args", "order"), [([], "best-fit"), (["--no-enable-prefix-caching"], "round-robin")]
)
def test_routers_get_the_order_that_the_engines_arguments_imply(
    read: Read, args: list[str], order: str
) -> None:
    engine = {"type": "vllm", "args": args}
    assert read("router", **{**SPEC, "engine": engine, "routing": {"maxHops": 2}}).spec.routing_order == order


def test_replicas_that_accept_http_get_the_settings_for_checking_requests(
    read: Read, make_pool: Callable[..., Pool]
) -> None:
    bounds = {"maxBodyBytes": 2**24, "maxHeaderBytes": 9999, "bodyTimeout": "9s", "writeTimeout": "9s"}
    asked = {"requests": {"allowFields": ["priority"]}, "routing": {"maxHops": 2, "backup": "reject"}}
    spec = {**SPEC, **asked, "router": {"replicas": 3, **bounds}, "gateway": "envoy"}
    pool, whole = read("replica", **spec).spec, make_pool(**spec).spec
    assert (pool.requests, pool.routing, pool.default_tier) == (whole.requests, whole.routing, "batch")
    assert pool.router == whole.router.model_copy(update={"replicas": 2})
    (application,) = pool.applications
    assert (application.name, application.tier, application.allow) == ("ide", "chat", ("batch",))


def test_keys_are_named_by_their_mounted_file_and_never_written(read: Read) -> None:
    (application,) = read("router", **SPEC).spec.applications
    assert application.keys.file == "/etc/penstock/keys/ide-keys/keys"
    assert read("replica", **SPEC).spec.applications == ()


@pytest.mark.parametrize(("least", "held"), [(0, 0), (1, 1), (3, 1)])
def test_routers_get_the_setting_and_duration_of_holding(read: Read, least: int, held: int) -> None:
    scaling = {"minReplicas": least, "maxReplicas": 8, "wakeTimeout": "45s"}
    reported = read("router", **SPEC, replicas=4, autoscaling=scaling).spec.autoscaling
    assert reported is not None
    assert (reported.min_replicas, reported.wake_timeout_s) == (held, 45)
    assert read("replica", **SPEC, replicas=4, autoscaling=scaling).spec.autoscaling is None


@pytest.mark.parametrize("kind", ["vllm", "openai"])
def test_every_type_of_engine_has_a_file_that_loads(read: Read, kind: str) -> None:
    engine = {"type": kind, "image": "engine:1", "timeModel": "llama-3-8b-a100"}
    for component in ("replica", "router"):
        assert read(component, engine=engine).spec.engine.type == kind
