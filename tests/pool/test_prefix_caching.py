"""Whether an engine caches prefixes, by its type and what the pool says."""

from typing import Any

import pytest
from penstock_pool.engine_spec import REPORTS_CACHED, EngineSpec, cache_arguments

SWITCHED: list[tuple[dict[str, Any], bool, tuple[str, ...]]] = [
    ({"type": "vllm"}, True, ()),
    ({"type": "vllm", "args": ["--no-enable-prefix-caching"]}, False, ()),
    ({"type": "vllm", "args": ["-v", "--enable-prefix-caching"]}, True, ()),
    ({"type": "vllm", "prefixCaching": False}, False, ("--no-enable-prefix-caching",)),
    ({"type": "vllm", "prefixCaching": True}, True, ("--enable-prefix-caching", REPORTS_CACHED)),
    (
        {"type": "vllm", "prefixCaching": True, "args": [REPORTS_CACHED]},
        True,
        ("--enable-prefix-caching",),
    ),
    ({"type": "simulated", "timeModel": "llama-3-8b-a100"}, False, ()),
    ({"type": "simulated", "timeModel": "llama-3-8b-a100", "prefixCaching": True}, True, ()),
    ({"type": "openai", "image": "any"}, False, ()),
    ({"type": "openai", "image": "any", "prefixCaching": True}, True, ()),
]


@pytest.mark.parametrize(("written", "caches", "arguments"), SWITCHED)
def test_the_pool_says_it_or_the_type(
    written: dict[str, Any], caches: bool, arguments: tuple[str, ...]
) -> None:
    spec = EngineSpec.model_validate(written)
    assert spec.caches_prefixes is caches
    if spec.type == "vllm":
        assert cache_arguments(spec) == arguments
