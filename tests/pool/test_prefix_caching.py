"""Whether an engine caches prefixes, by its type and the pool's setting."""

from typing import Any

import pytest
from penstock_pool.engine_spec import CACHED_TOKENS_ARGUMENT, EngineSpec, cache_arguments
from penstock_pool.serving_pool import PoolSpec

SWITCHED: list[tuple[dict[str, Any], bool, tuple[str, ...]]] = [
    ({"type": "vllm"}, True, ()),
    ({"type": "vllm", "args": ["--no-enable-prefix-caching"]}, False, ()),
    ({"type": "vllm", "args": ["-v", "--enable-prefix-caching"]}, True, ()),
    ({"type": "vllm", "prefixCaching": False}, False, ("--no-enable-prefix-caching",)),
    ({"type": "vllm", "prefixCaching": True}, True, ("--enable-prefix-caching", CACHED_TOKENS_ARGUMENT)),
    (
        {"type": "vllm", "prefixCaching": True, "args": [CACHED_TOKENS_ARGUMENT]},
        True,
        ("--enable-prefix-caching",),
    ),
    ({"type": "simulated", "timeModel": "llama-3-8b-a100"}, False, ()),
    ({"type": "simulated", "timeModel": "llama-3-8b-a100", "prefixCaching": True}, True, ()),
    ({"type": "openai", "image": "any"}, False, ()),
    ({"type": "openai", "image": "any", "prefixCaching": True}, True, ()),
]


@pytest.mark.parametrize(("written", "caches", "arguments"), SWITCHED)
def test_prefix_caching_follows_the_pool_or_the_engine_type(
    written: dict[str, Any], caches: bool, arguments: tuple[str, ...]
) -> None:
    spec = EngineSpec.model_validate(written)
    assert spec.caches_prefixes is caches
    if spec.type == "vllm":
        assert cache_arguments(spec) == arguments


@pytest.mark.parametrize(("engine", "caches", "_arguments"), SWITCHED)
def test_without_an_order_a_pool_weighs_prefixes_if_the_engine_caches_them(
    engine: dict[str, Any], caches: bool, _arguments: tuple[str, ...]
) -> None:
    assert pool_spec(engine, {}).routing_order == ("best-fit" if caches else "round-robin")


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_an_order_in_the_pool_is_kept(prefix_caching: bool) -> None:
    engine = {"type": "vllm", "prefixCaching": prefix_caching}
    assert pool_spec(engine, {"order": "least-loaded"}).routing_order == "least-loaded"


def pool_spec(engine: dict[str, Any], routing: dict[str, Any]) -> PoolSpec:
    tiers = [{"name": "chat", "slo": {"ttft": "800ms"}}]
    return PoolSpec.model_validate(
        {"model": {"name": "m"}, "engine": engine, "tiers": tiers, "routing": routing}
    )
