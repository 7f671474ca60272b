"""The first replica of each order, and what all orders have in common."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.forecast.snapshot import Snapshot
from penstock_core.routing.orders import ORDERS
from penstock_core.routing.orders.turns import MOST_COMPARED
from penstock_core.routing.replica_load import Order, ReplicaLoad, RoutingRequest, estimated_tokens

ASKED = RoutingRequest("chat", 4000, 0, ttft_s=1.0, tpot_s=0.1)
IDLE = Snapshot(
    prefill_tokens_s=10_000.0, kv_tokens_headroom=40_000, kv_tokens_free=40_000, kv_tokens_total=40_000
)


def replicas(*snapshots: Snapshot) -> list[ReplicaLoad]:
    return [ReplicaLoad(f"r{i}", reported) for i, reported in enumerate(snapshots)]


every_order = pytest.mark.parametrize("order", [pytest.param(ORDERS[name], id=name) for name in ORDERS])

seconds = st.floats(0.0, 100.0) | st.just(inf)
counts = st.integers(0, 500)
snapshots = st.builds(
    Snapshot,
    running=counts,
    waiting=counts,
    best_effort=counts,
    prefill_tokens_left=st.integers(0, 10**6),
    work_s=st.floats(0.0, 100.0),
    prefill_wait_s=seconds,
    prefill_slack_s=seconds,
    prefill_tokens_s=st.floats(0.0, 1e5) | st.just(inf),
    step_s=st.floats(0.0, 1.0),
    tightest_tpot_s=st.sampled_from([0.05, 0.1, inf]),
    kv_tokens_headroom=st.integers(0, 10**6),
)
some_replicas = st.lists(snapshots, max_size=6).flatmap(
    lambda reported: st.permutations(
        [
            ReplicaLoad(f"r{i}", one, snapshot_s=-i / 10, sent=i % 3, sent_tokens=i % 3 * 700)
            for i, one in enumerate(reported)
        ]
    )
)
requests = st.builds(
    RoutingRequest,
    tier=st.sampled_from(["chat", "coder", "batch"]),
    body_bytes=st.integers(0, 10**6),
    number=st.integers(0, 100),
    ttft_s=seconds,
    tpot_s=st.sampled_from([0.05, 0.1, inf]),
    cached_tokens=st.dictionaries(st.sampled_from(["r0", "r1", "r2", "gone"]), st.integers(-5, 10**6)),
    affinity=st.none() | st.binary(max_size=4),
)


@every_order
@given(there=some_replicas, requested=requests)
def test_an_order_has_each_replica_once(
    order: Order, there: list[ReplicaLoad], requested: RoutingRequest
) -> None:
    assert sorted(order(there, requested)) == sorted(load.name for load in there)


@every_order
@given(there=some_replicas, requested=requests)
def test_an_order_does_not_depend_on_the_listing(
    order: Order, there: list[ReplicaLoad], requested: RoutingRequest
) -> None:
    assert order(there, requested) == order(there[::-1], requested)


@every_order
@given(reported=snapshots, count=st.integers(1, 6), turn=st.integers(0, 100))
def test_equal_replicas_are_rotated(order: Order, reported: Snapshot, count: int, turn: int) -> None:
    there = replicas(*[reported] * count)
    firsts = [order(there, ASKED._replace(number=turn + i))[0] for i in range(count)]
    assert sorted(firsts) == [load.name for load in there]


@pytest.mark.parametrize("name", sorted(set(ORDERS) - {"round-robin"}))
def test_in_a_large_pool_a_rotating_subset_is_compared(name: str) -> None:
    """The least loaded replica is compared with others by so many requests in a row, and is their first."""
    count = 3 * MOST_COMPARED
    busy = replace(IDLE, running=1, work_s=1.0, prefill_wait_s=0.2, prefill_tokens_left=2000)
    there = [ReplicaLoad(f"r{i:03d}", busy) for i in range(count)]
    there[count // 2] = ReplicaLoad(there[count // 2].name, IDLE)
    orders = [ORDERS[name](there, ASKED._replace(number=turn)) for turn in range(count)]
    names = [load.name for load in there]
    assert all(sorted(order) == names for order in orders)
    assert sum(order[0] == names[count // 2] for order in orders) == MOST_COMPARED


def test_round_robin_starts_one_further_each_time() -> None:
    there = [ReplicaLoad(name) for name in "bac"]
    orders = [ORDERS["round-robin"](there, RoutingRequest("chat", 10, turn)) for turn in range(4)]
    assert orders == [("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b"), ("a", "b", "c")]


def test_least_loaded_is_done_first() -> None:
    there = replicas(replace(IDLE, work_s=3.0), replace(IDLE, work_s=1.0), replace(IDLE, work_s=2.0))
    assert ORDERS["least-loaded"](there, ASKED) == ("r1", "r2", "r0")


def test_lmetric_multiplies_tokens_by_batch() -> None:
    there = replicas(
        replace(IDLE, running=10, prefill_tokens_left=1000),  # 10 · (1000 + 1000)
        replace(IDLE, running=4, prefill_tokens_left=5000),  # 4 · (5000 + 1000)
        replace(IDLE, running=3, waiting=1, prefill_tokens_left=3000),  # 4 · (3000 + 1000)
        IDLE,
    )
    assert ORDERS["lmetric"](there, ASKED) == ("r3", "r2", "r0", "r1")


def test_least_loaded_knows_a_faster_engine() -> None:
    there = replicas(replace(IDLE, work_s=0.1), replace(IDLE, work_s=0.15, prefill_tokens_s=20_000.0))
    assert ORDERS["least-loaded"](there, ASKED._replace(body_bytes=2000)) == ("r0", "r1")
    assert ORDERS["least-loaded"](there, ASKED._replace(body_bytes=8000)) == ("r1", "r0")


def test_best_fit_prefers_the_earliest_first_token_if_memory_suffices() -> None:
    there = replicas(
        replace(IDLE, prefill_wait_s=0.3),  # first token after 0.4 s
        replace(IDLE, prefill_wait_s=0.1, prefill_tokens_s=2_000.0),  # 0.6 s: tight decodes leave little
        replace(IDLE, prefill_wait_s=0.2, work_s=50.0),  # 0.3 s
        replace(IDLE, kv_tokens_headroom=999),
    )
    assert ORDERS["best-fit"](there, ASKED) == ("r2", "r0", "r1", "r3")


@pytest.mark.parametrize("name", ["best-fit", "class-affinity"])
def test_a_replica_without_memory_figures_does_not_count_as_full(name: str) -> None:
    there = replicas(replace(IDLE, prefill_wait_s=0.1), Snapshot())
    assert ORDERS[name](there, ASKED) == ("r1", "r0")


AFFINITY = ORDERS["class-affinity"]
CODERS, CHATS = replace(IDLE, tightest_tpot_s=0.05), replace(IDLE, tightest_tpot_s=0.1)


@pytest.mark.parametrize(
    ("tpot_s", "requested"),
    [
        (0.05, ("r0", "r2", "r1")),  # coders, none, then the chats that it would slow down
        (0.1, ("r1", "r2", "r0")),  # chats, none, then the coders, which it does not slow down
        (0.09, ("r1", "r2", "r0")),  # close enough to a chat
        (0.2, ("r2", "r0", "r1")),
        (inf, ("r2", "r0", "r1")),
    ],
)
def test_similar_tpot_targets_share_replicas(tpot_s: float, requested: tuple[str, ...]) -> None:
    assert AFFINITY(replicas(CODERS, CHATS, IDLE), ASKED._replace(tpot_s=tpot_s)) == requested


def test_a_request_is_sent_last_to_replicas_that_it_would_slow() -> None:
    there = replicas(replace(CHATS, prefill_wait_s=0.0), replace(CODERS, prefill_wait_s=0.3))
    assert AFFINITY(there, ASKED._replace(tpot_s=0.02)) == ("r0", "r1")
    assert AFFINITY(there, ASKED._replace(tpot_s=0.045)) == ("r1", "r0")


@pytest.mark.parametrize(
    "busy", [{"prefill_wait_s": 0.45}, {"prefill_tokens_s": 1500.0}, {"kv_tokens_headroom": 900}], ids=str
)
def test_a_tier_spills_over_if_its_own_replicas_are_busy(busy: dict[str, float]) -> None:
    there = replicas(replace(CHATS, **busy), CODERS)  # type: ignore[arg-type]
    assert AFFINITY(there, ASKED) == ("r1", "r0")


def test_a_replica_is_busy_past_half_of_a_first_tokens_budget() -> None:
    """The first token comes after 0.9 s at its own kind."""
    there = replicas(replace(CHATS, prefill_wait_s=0.8), CODERS)
    assert AFFINITY(there, ASKED._replace(ttft_s=2.0)) == ("r0", "r1")
    assert AFFINITY(there, ASKED._replace(ttft_s=1.8)) == ("r0", "r1")
    assert AFFINITY(there, ASKED._replace(ttft_s=1.7)) == ("r1", "r0")


@pytest.mark.parametrize(("tpot_s", "first"), [(0.125, "r0"), (0.126, "r1"), (0.08, "r0"), (0.079, "r1")])
def test_tpot_targets_within_a_quarter_are_one_class(tpot_s: float, first: str) -> None:
    assert AFFINITY(replicas(CHATS, IDLE), ASKED._replace(tpot_s=tpot_s, number=0))[0] == first


def test_if_all_replicas_are_busy_kinds_do_not_matter() -> None:
    there = [
        replace(reported, prefill_wait_s=wait_s)
        for reported, wait_s in ((CHATS, 0.9), (CODERS, 0.6), (IDLE, 0.7))
    ]
    assert (
        AFFINITY(replicas(*there), ASKED) == ORDERS["best-fit"](replicas(*there), ASKED) == ("r1", "r2", "r0")
    )


def test_sent_requests_count_before_the_replica_reports_them() -> None:
    fresh, flooded = ReplicaLoad("fresh", IDLE), ReplicaLoad("flooded", IDLE, sent=5, sent_tokens=5000)
    assert flooded.batch == 5
    assert flooded.prefill_wait_s(0.0) == flooded.work_s(0.0) == pytest.approx(0.5)
    assert flooded.holds(35_000)
    assert not flooded.holds(35_001)
    for name in ("least-loaded", "lmetric", "best-fit"):
        assert ORDERS[name]([flooded, fresh], ASKED)[0] == "fresh"


def test_an_old_snapshot_is_projected_to_now() -> None:
    reported = replace(IDLE, work_s=3.0, prefill_wait_s=1.0)
    load = ReplicaLoad("r0", reported, snapshot_s=-0.4)
    assert (load.work_s(0.0), load.prefill_wait_s(0.0)) == pytest.approx((2.6, 0.6))
    assert replace(load, snapshot_s=-9.0).prefill_wait_s(0.0) == 0.0


def test_a_prompt_never_finishes_if_decodes_leave_no_tokens() -> None:
    full = ReplicaLoad("r0", replace(IDLE, prefill_tokens_s=0.0))
    assert full.prefill_s(1) == inf
    assert full.prefill_s(0) == full.prefill_wait_s(0.0) == 0.0


def test_a_prompt_is_about_a_quarter_of_its_bytes() -> None:
    assert (estimated_tokens(0), estimated_tokens(4000), ASKED.prompt_tokens) == (1, 1000, 1000)


def cached(**tokens: int) -> RoutingRequest:
    return ASKED._replace(cached_tokens=tokens)


def test_prefix_orders_by_the_longest_prefix_then_the_least_work() -> None:
    there = replicas(
        replace(IDLE, work_s=3.0),
        replace(IDLE, work_s=1.0),
        replace(IDLE, work_s=9.0),
        replace(IDLE, work_s=2.0),
    )
    assert ORDERS["prefix"](there, cached(r2=800, r0=500)) == ("r2", "r0", "r1", "r3")
    assert ORDERS["prefix"](there, cached(r2=500, r0=500)) == ("r0", "r2", "r1", "r3")


def test_without_a_cached_prefix_the_least_loaded_is_first() -> None:
    there = replicas(replace(IDLE, work_s=3.0), replace(IDLE, work_s=1.0), replace(IDLE, work_s=2.0))
    assert ORDERS["prefix"](there, cached(r0=0, r2=-1)) == ("r1", "r2", "r0")


def test_without_a_cached_prefix_an_affinity_selects_the_same_replicas() -> None:
    there, busy = replicas(*[IDLE] * 4), replicas(*[replace(IDLE, work_s=at) for at in (3.0, 2.0, 1.0, 0.0)])
    order = ORDERS["prefix"](there, ASKED._replace(affinity=b"a session"))
    assert ORDERS["prefix"](busy, ASKED._replace(affinity=b"a session", number=7)) == order
    held = ASKED._replace(affinity=b"a session", cached_tokens={order[3]: 64})
    assert ORDERS["prefix"](there, held) == (order[3], *order[:3])


def test_affinities_spread_over_replicas() -> None:
    there = replicas(*[IDLE] * 4)
    first = [ORDERS["prefix"](there, ASKED._replace(affinity=b"%d" % number))[0] for number in range(400)]
    assert all(70 < first.count(load.name) < 130 for load in there)


def test_a_removed_replica_moves_only_its_own_sessions() -> None:
    there = replicas(*[IDLE] * 4)
    for number in range(50):
        requested = ASKED._replace(affinity=b"%d" % number)
        order = ORDERS["prefix"](there, requested)
        left = [load for load in there if load.name != "r1"]
        assert ORDERS["prefix"](left, requested) == tuple(name for name in order if name != "r1")


def test_replicas_with_equal_prefixes_are_rotated() -> None:
    there = replicas(IDLE, IDLE, IDLE)
    requested = cached(r0=500, r1=500, r2=500)
    assert [ORDERS["prefix"](there, requested._replace(number=turn))[0] for turn in range(4)] == [
        "r0",
        "r1",
        "r2",
        "r0",
    ]


def test_in_a_large_pool_a_replica_with_the_prefix_is_always_found() -> None:
    there = [ReplicaLoad(f"r{i:03d}", IDLE) for i in range(3 * MOST_COMPARED)]
    requested = cached(r150=16)
    assert {ORDERS["prefix"](there, requested._replace(number=turn))[0] for turn in range(len(there))} == {
        "r150"
    }


@pytest.mark.parametrize("name", ["least-loaded", "lmetric", "best-fit", "class-affinity"])
def test_orders_by_load_count_only_uncached_tokens(name: str) -> None:
    """A prompt of 1000 tokens, 900 of them cached at r1, where a little more is to be done before it."""
    shorter = replace(IDLE, running=1, work_s=0.01, prefill_wait_s=0.01, prefill_tokens_left=100)
    longer = replace(IDLE, running=1, work_s=0.05, prefill_wait_s=0.05, prefill_tokens_left=500)
    there = replicas(shorter, longer)
    assert ORDERS[name](there, ASKED) == ("r0", "r1")
    assert ORDERS[name](there, cached(r1=900)) == ("r1", "r0")
    assert ORDERS[name](there, cached(r1=5_000)) == ("r1", "r0")  # expected more than the prompt has


def test_lmetric_prefers_the_idle_replica_with_the_prefix() -> None:
    assert ORDERS["lmetric"](replicas(IDLE, IDLE), cached(r1=900)) == ("r1", "r0")
