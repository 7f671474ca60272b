"""The routing rules of other systems, against their published definitions."""

from dataclasses import replace

import pytest
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.replica_load import Order, ReplicaLoad, RoutingRequest
from penstock_simulator.routing_rules import ROUTING_RULES
from penstock_simulator.routing_rules.dynamo import dynamo
from penstock_simulator.routing_rules.llm_d import llm_d
from penstock_simulator.routing_rules.sglang import sglang

ASKED = RoutingRequest("chat", 4000, 0)  # 1000 tokens
FREE = Snapshot(kv_tokens_free=10_000, kv_tokens_total=10_000)


def replicas(*snapshots: Snapshot) -> list[ReplicaLoad]:
    return [ReplicaLoad(f"r{i}", one) for i, one in enumerate(snapshots)]


def cached(**tokens: int) -> RoutingRequest:
    return ASKED._replace(cached_tokens=tokens)


@pytest.mark.parametrize("rule", [pytest.param(rule, id=name) for name, rule in ROUTING_RULES.items()])
def test_every_rule_orders_the_replicas_of_every_pool(rule: Order) -> None:
    for count in range(4):
        there = replicas(*[FREE] * count)
        assert sorted(rule(there, cached(r1=500))) == [load.name for load in there]


def test_llm_d_weights_three_scores() -> None:
    there = replicas(
        replace(FREE, waiting=4, kv_tokens_free=5_000),  # 3 · 0.9 + 2 · 0 + 2 · 0.5 = 3.7
        replace(FREE, waiting=0, kv_tokens_free=5_000),  # 3 · 0.2 + 2 · 1 + 2 · 0.5 = 3.6
        replace(FREE, waiting=1, kv_tokens_free=10_000),  # 3 · 0 + 2 · 0.75 + 2 · 1 = 3.5
    )
    assert llm_d(there, cached(r0=900, r1=200)) == ("r0", "r1", "r2")
    assert llm_d(there, cached(r0=700, r1=200)) == ("r1", "r2", "r0")


def test_llm_d_without_known_memory_counts_it_as_free() -> None:
    assert llm_d(replicas(replace(FREE, kv_tokens_free=9_000), Snapshot()), ASKED) == ("r1", "r0")


def test_sglang_prefers_the_longest_prefix_while_loads_are_balanced() -> None:
    there = replicas(FREE, replace(FREE, running=64), replace(FREE, running=64))
    assert sglang(there, cached(r1=400, r2=900))[0] == "r2"
    unbalanced = replicas(FREE, replace(FREE, running=65), replace(FREE, running=64))
    assert sglang(unbalanced, cached(r1=400, r2=900))[0] == "r0"
    alike = replicas(replace(FREE, running=200), replace(FREE, running=290))
    assert sglang(alike, cached(r1=900))[0] == "r1"


def test_sglangs_name_has_the_allowed_difference_of_loads() -> None:
    rule = ROUTING_RULES["sglang-4"]
    assert rule(replicas(FREE, replace(FREE, running=4)), cached(r1=900))[0] == "r1"
    assert rule(replicas(FREE, replace(FREE, running=5)), cached(r1=900))[0] == "r0"


def test_dynamos_name_has_the_weight_of_prefill() -> None:
    there = replicas(replace(FREE, kv_tokens_free=7_000), FREE)  # 3,000 tokens are in use at r0
    assert ROUTING_RULES["dynamo"](there, cached(r0=900))[0] == "r1"
    assert ROUTING_RULES["dynamo-4"](there, cached(r0=900))[0] == "r0"


def test_sglang_prefers_free_memory_if_little_is_cached() -> None:
    there = replicas(replace(FREE, kv_tokens_free=2_000), replace(FREE, kv_tokens_free=8_000))
    assert sglang(there, cached(r0=300))[0] == "r1"
    assert sglang(there, cached(r0=301))[0] == "r0"


def test_dynamo_adds_prefill_and_active_tokens() -> None:
    there = replicas(
        replace(FREE, kv_tokens_free=9_500, prefill_tokens_left=200),  # 500 + 200 + 1000
        replace(FREE, kv_tokens_free=8_000),  # 2000 + 100
        replace(FREE, kv_tokens_free=8_500),  # 1500 + 1000
    )
    assert dynamo(there, cached(r1=900)) == ("r0", "r1", "r2")
    assert dynamo(there, cached(r1=900, r0=1)) == ("r0", "r1", "r2")
    assert dynamo(there, cached(r2=950)) == ("r2", "r0", "r1")
