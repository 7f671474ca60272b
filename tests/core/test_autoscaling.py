"""Decisions on one observation, as documented, and the state that each leaves."""

from dataclasses import replace
from math import inf

import pytest
from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.autoscaling.memory import PERIODS, SLOTS, AutoscalerState, Period, ScalingDecision, Share
from penstock_core.autoscaling.terms import Decision, Scaling
from penstock_core.autoscaling.terms import ScalingReason as Reason
from penstock_core.autoscaling.utilization import filling
from penstock_core.forecast.snapshot import Snapshot

NOW_S = 10_000.0
PERIOD_S = 15.0
POOL = Scaling(min_replicas=1, max_replicas=10)
ZERO = replace(POOL, min_replicas=0)
AT_ONCE = replace(POOL, scale_down_window_s=0.0)


def chat(arrived: int, *, refused: int = 0, late: int = 0, hops: int = 0) -> dict[str, TierDemand]:
    admitted = arrived - refused
    return {
        "chat": TierDemand(
            arrived=arrived,
            admitted=admitted,
            best_effort=refused,
            hops=hops or admitted,
            judged=admitted,
            met=admitted - late,
        )
    }


def pool_of(
    ready: int, share: float = 0.0, *, starting: int = 0, running: int = 1
) -> tuple[ReplicaDemand, ...]:
    """Replicas, the ready ones so full."""
    output = Snapshot(running=running, kv_tokens_total=1000, kv_tokens_headroom=round(1000 * (1 - share)))
    return (
        *(ReplicaDemand(f"r{i}", ReplicaState.READY, output) for i in range(ready)),
        *(ReplicaDemand(f"s{i}", ReplicaState.STARTING) for i in range(starting)),
    )


def seen(
    tiers: dict[str, TierDemand],
    replicas: tuple[ReplicaDemand, ...],
    *,
    desired: int | None = None,
    held: int = 0,
    elapsed_s: float = PERIOD_S,
) -> DemandObservation:
    return DemandObservation(elapsed_s, len(replicas) if desired is None else desired, tiers, held, replicas)


def remembering(ready: int, *, desired: int | None = None, **more: object) -> AutoscalerState:
    """Return the state of a pool that has had this many replicas for long and was busy when last observed."""
    last = (ScalingDecision(NOW_S - 1000, ready if desired is None else desired),)
    state = AutoscalerState(up=last, down=last, ready=ready, busy_s=NOW_S - PERIOD_S)
    return replace(state, **more)  # type: ignore[arg-type]


def decided(scaling: Scaling, demand: DemandObservation, memory: AutoscalerState) -> Decision:
    return decide_replicas(scaling, demand, memory, NOW_S)[0]


HALF = pool_of(2, 0.5)

TABLE = [
    # what happens                               demand                                        capacity  then
    ("nothing is wrong", seen(chat(60), pool_of(2, 0.8)), None, (2, Reason.STEADY)),
    ("a third is refused", seen(chat(60, refused=20), HALF), None, (4, Reason.REFUSED)),
    ("nearly all is refused", seen(chat(900, refused=880), HALF), None, (7, Reason.REFUSED)),
    ("all is refused", seen(chat(900, refused=900), HALF), None, (7, Reason.REFUSED)),
    ("all is refused by many", seen(chat(99, refused=99), pool_of(6)), None, (10, Reason.BOUND)),
    ("as much is refused as may be", seen(chat(100, refused=5), pool_of(2, 0.8)), None, (2, Reason.STEADY)),
    ("two of four are refused", seen(chat(4, refused=2), pool_of(2, 0.8)), None, (2, Reason.STEADY)),
    ("a third is late", seen(chat(60, late=20), HALF), None, (4, Reason.MISSED)),
    ("two of twenty are late", seen(chat(20, late=2), pool_of(2, 0.8)), None, (2, Reason.STEADY)),
    ("three of twenty are late", seen(chat(20, late=3), pool_of(2, 0.8)), None, (3, Reason.MISSED)),
    ("nothing was ever counted", seen({}, pool_of(1, 0.0), elapsed_s=0.0), 0.1, (1, Reason.STEADY)),
    ("late on idle replicas", seen(chat(60, late=20), pool_of(2, 0.2)), 3.0, (2, Reason.STEADY)),
    ("all are late", seen(chat(60, late=60), HALF), None, (5, Reason.MISSED)),
    ("admitted requests fill the pool", seen(chat(60), pool_of(2, 1.0)), None, (3, Reason.FILLED)),
    ("more is offered than was ever kept", seen(chat(60), HALF), 1.0, (4, Reason.OFFERED)),
    ("those that come are enough", seen(chat(60), pool_of(2, 0.5, starting=3)), 1.0, (5, Reason.STEADY)),
    ("too many for too little", seen(chat(60), pool_of(5, 0.2)), None, (4, Reason.SURPLUS)),
    ("a quarter goes at once at most", seen(chat(60), pool_of(8, 0.1)), None, (6, Reason.SURPLUS)),
    ("too many, and full ones", seen(chat(60), pool_of(5, 0.7)), None, (5, Reason.STEADY)),
    ("tries are refused", seen(chat(60, hops=90), pool_of(5, 0.2)), None, (5, Reason.HOPPED)),
    ("a fifth of the tries is refused", seen(chat(60, hops=75), pool_of(5, 0.2)), None, (4, Reason.SURPLUS)),
    ("idle, and one has to stay", seen({}, pool_of(1, 0.0, running=0)), None, (1, Reason.STEADY)),
    ("a tier without an SLO floods", seen({"batch": TierDemand(900, 0, 900, has_slo=False)}, pool_of(1)),
     None, (1, Reason.STEADY)),
    ("more than are allowed", seen(chat(60), pool_of(12, 0.9)), None, (10, Reason.BOUND)),
    ("fewer than are allowed", seen({}, (), desired=0), None, (1, Reason.BOUND)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("demand", "capacity_rps", "then"), [row[1:] for row in TABLE], ids=[r[0] for r in TABLE]
)
def test_one_observation_gives_the_expected_decision(
    demand: DemandObservation, capacity_rps: float | None, then: tuple[int, Reason]
) -> None:
    memory = remembering(len(demand.ready()), desired=1, capacity_rps=capacity_rps)
    decision = decided(AT_ONCE, demand, memory)
    assert (decision.replicas, decision.reason) == then


def test_current_load_keeps_replicas_even_if_the_mean_load_is_lower() -> None:
    """3.5 full ones now, and half of that in the mean: with a tenth more and nine tenths full, five."""
    quiet = Period(NOW_S - 15, 15.0, 5, 0.0, 0, 0, {})
    decision = decided(AT_ONCE, seen(chat(60), pool_of(5, 0.7)), remembering(5, periods=(quiet,)))
    assert (decision.replicas, decision.reason) == (5, Reason.STEADY)
    less = decided(AT_ONCE, seen(chat(60), pool_of(5, 0.6)), remembering(5, periods=(quiet,)))
    assert (less.replicas, less.reason) == (4, Reason.SURPLUS)


@pytest.mark.parametrize("capacity_rps", [None, 4.0])
def test_with_unknown_capacity_each_step_down_is_observed_for_a_whole_window(
    capacity_rps: float | None,
) -> None:
    before = remembering(8, desired=3, capacity_rps=capacity_rps, down=(ScalingDecision(NOW_S - 290, 3),))
    decision, after = decide_replicas(POOL, seen(chat(60), pool_of(8, 0.1)), before, NOW_S)
    assert decision.replicas == 6
    assert (after.down == (ScalingDecision(NOW_S, 6),)) is (capacity_rps is None)


def test_autoscaling_settings_have_the_documented_defaults() -> None:
    assert Scaling(1, 10) == Scaling(
        min_replicas=1,
        max_replicas=10,
        target_attainment=0.95,
        fill=0.9,
        tolerance=0.1,
        observed_s=60.0,
        scale_up_window_s=0.0,
        scale_down_window_s=300.0,
        idle_timeout_s=600.0,
        forget_s=7200.0,
    )
    assert TierDemand() == TierDemand(0, 0, 0, 0, 0, 0, 0, has_slo=True)
    assert DemandObservation(15.0, 2) == DemandObservation(15.0, 2, {}, held=0, replicas=())


def test_the_worst_tier_decides_for_the_pool() -> None:
    tiers = {"chat": TierDemand(1000, 1000, 0, 0, 1000, 1000, 1000), "coder": TierDemand(40, 20, 20, 0, 40)}
    decision = decided(POOL, seen(tiers, HALF), remembering(2))
    assert (decision.replicas, decision.reason) == (5, Reason.REFUSED)
    assert decision.message == "50% of tier coder were rejected by 2 replicas"


def test_a_bound_is_named() -> None:
    decision = decided(POOL, seen(chat(99, refused=99), pool_of(9)), remembering(9))
    assert decision == Decision(
        10, Reason.BOUND, "100% of tier chat were rejected by 9 replicas; maxReplicas is 10"
    )


def test_rejections_by_fewer_replicas_do_not_add_more() -> None:
    old = Period(NOW_S - 15, 15.0, 1, 0.5, 60, 30, {"chat": Share(60, 30, 0, 0)})
    assert decided(POOL, seen(chat(60), HALF), remembering(2, periods=(old,))).replicas == 2
    same = old._replace(ready=2)
    assert decided(POOL, seen(chat(60), HALF), remembering(2, periods=(same,))).replicas > 2


def test_demand_is_averaged_over_the_time_that_is_observed() -> None:
    quiet = Period(NOW_S - 30, 45.0, 2, 0.5, 0, 0, {})
    decision = decided(POOL, seen(chat(60), HALF), remembering(2, periods=(quiet,), capacity_rps=0.5))
    assert decision.message == "1 requests/s are offered, and a replica takes 0.5"
    long_ago = quiet._replace(ended_s=NOW_S - POOL.observed_s)
    decision = decided(POOL, seen(chat(60), HALF), remembering(2, periods=(long_ago,), capacity_rps=1.0))
    assert decision.message.startswith("4 requests/s")


# Windows.


def test_replicas_are_removed_once_the_whole_window_requires_fewer() -> None:
    demand, memory, now_s = seen(chat(60), pool_of(4, 0.1)), AutoscalerState(), 0.0
    while (decision := decide_replicas(POOL, demand, memory, now_s))[0].replicas == 4:
        assert decision[0].reason in {Reason.STABILISING, Reason.STEADY}
        memory, now_s = decision[1], now_s + PERIOD_S
    assert now_s == POOL.scale_down_window_s
    assert (decision[0].replicas, decision[0].reason) == (3, Reason.SURPLUS)


def test_replicas_are_added_once_the_whole_window_requires_more() -> None:
    patient = replace(POOL, scale_up_window_s=60.0)
    demand, memory, now_s = seen(chat(60, refused=30), HALF), AutoscalerState(), 0.0
    while (decision := decide_replicas(patient, demand, memory, now_s))[0].replicas == 2:
        assert decision[0].reason is Reason.STABILISING or now_s == 0.0
        memory, now_s = decision[1], now_s + PERIOD_S
    assert now_s == 75.0


def test_a_message_names_the_replicas_required_within_the_window() -> None:
    memory = remembering(4, down=(ScalingDecision(NOW_S - 60, 4),))
    decision = decided(POOL, seen(chat(60), pool_of(4, 0.3)), memory)
    assert decision == Decision(
        4, Reason.STABILISING, "the demand needs 2: the admitted requests fill 1.20 replicas"
    )


# To zero, and back.


def test_a_pool_is_idle_since_its_last_request_or_the_first_observation() -> None:
    def busy_s(memory: AutoscalerState, demand: DemandObservation) -> float | None:
        return decide_replicas(ZERO, demand, memory, NOW_S)[1].busy_s

    idle, working = seen({}, pool_of(1, running=0)), seen({}, pool_of(1, running=1))
    assert busy_s(AutoscalerState(), idle) == busy_s(AutoscalerState(), working) == NOW_S
    assert busy_s(remembering(1), working) == NOW_S
    assert busy_s(remembering(1), idle) == NOW_S - PERIOD_S


def test_a_pool_scales_to_zero_after_the_idle_timeout() -> None:
    idle = seen({}, pool_of(2, running=0))
    almost = remembering(2, busy_s=NOW_S - ZERO.idle_timeout_s + 1)
    assert decided(ZERO, idle, almost).replicas == 2
    decision = decided(ZERO, idle, remembering(2, busy_s=NOW_S - ZERO.idle_timeout_s))
    assert decision == Decision(0, Reason.IDLE, "no request for 600 s")


@pytest.mark.parametrize(
    "demand",
    [
        seen({}, pool_of(1, running=1)),
        seen({"batch": TierDemand(arrived=1, has_slo=False)}, pool_of(1, running=0)),
        seen({}, pool_of(1, running=0), held=1),
    ],
    ids=["runs", "came", "held"],
)
def test_a_pool_with_demand_does_not_scale_to_zero(demand: DemandObservation) -> None:
    memory = remembering(1, busy_s=NOW_S - 10 * ZERO.idle_timeout_s)
    assert decided(ZERO, demand, memory).replicas == 1


def test_one_replica_remains_if_zero_is_not_allowed() -> None:
    memory = remembering(1, busy_s=NOW_S - 10 * POOL.idle_timeout_s)
    assert decided(POOL, seen({}, pool_of(1, running=0)), memory).replicas == 1


def test_the_first_held_request_starts_a_replica_whatever_the_windows_are() -> None:
    patient = replace(ZERO, scale_up_window_s=600.0)
    memory = AutoscalerState(up=(ScalingDecision(NOW_S - 15, 0),), busy_s=NOW_S - 9000)
    decision, after = decide_replicas(patient, seen({}, (), held=1), memory, NOW_S)
    assert decision == Decision(1, Reason.WAKE, "1 requests are held")
    assert after.up == after.down == (ScalingDecision(NOW_S, 1),)


def test_a_pool_scaled_from_zero_gets_replicas_for_all_held_requests() -> None:
    memory = remembering(0, capacity_rps=1.0)
    assert decided(ZERO, seen(chat(60, refused=60), (), held=60), memory).replicas == 5


def test_a_pool_scaled_to_zero_stays_there_until_it_is_needed() -> None:
    decision, memory = decide_replicas(ZERO, seen({}, (), elapsed_s=0.0), AutoscalerState(), NOW_S)
    assert (decision.replicas, decision.reason) == (0, Reason.IDLE)
    assert decide_replicas(ZERO, seen({}, ()), memory, NOW_S + 15)[0].replicas == 0


# Capacity, as it is learned.


def after(memory: AutoscalerState, demand: DemandObservation, scaling: Scaling = POOL) -> float | None:
    return decide_replicas(scaling, demand, memory, NOW_S)[1].capacity_rps


def test_capacity_is_unknown_until_a_request_is_refused() -> None:
    assert after(remembering(2), seen(chat(60), HALF)) is None
    assert after(remembering(2), seen(chat(60, refused=30), HALF)) == pytest.approx(1.0)


def test_capacity_moves_halfway_to_the_rate_that_refusals_show() -> None:
    minute = seen(chat(240, refused=120), HALF, elapsed_s=60.0)
    assert after(remembering(2, capacity_rps=3.0), minute) == pytest.approx(2.0)


def test_capacity_grows_with_load_that_is_served_without_refusals() -> None:
    minute = seen(chat(480), HALF, elapsed_s=60.0)
    assert after(remembering(2, capacity_rps=3.0), minute) == pytest.approx(3.5)


def test_capacity_is_forgotten_while_replicas_are_not_half_full() -> None:
    hours = seen(chat(60), pool_of(2, 0.2), elapsed_s=POOL.forget_s)
    assert after(remembering(2, capacity_rps=2.0), hours) == pytest.approx(3.0)
    assert after(remembering(2, capacity_rps=2.0), replace(hours, replicas=HALF)) == 2.0


@pytest.mark.parametrize("demand", [seen(chat(60), HALF, elapsed_s=0.0), seen(chat(60), (), desired=2)])
def test_capacity_is_not_learned_without_evidence(demand: DemandObservation) -> None:
    assert after(remembering(2, capacity_rps=2.0), demand) == 2.0


def test_a_replica_added_meanwhile_has_not_refused() -> None:
    """Two are ready, one was all the time: the refusals are that one's."""
    _, memory = decide_replicas(POOL, seen(chat(60, refused=30), HALF), remembering(1), NOW_S)
    assert memory.periods[-1].ready == 1
    assert memory.capacity_rps is None


# How full a replica is.


@pytest.mark.parametrize(
    ("output", "share"),
    [
        (Snapshot(), 0.0),
        (Snapshot(kv_tokens_total=100, kv_tokens_headroom=25), 0.75),
        (Snapshot(kv_tokens_total=100, kv_tokens_headroom=-5), 1.0),
        (Snapshot(kv_tokens_total=100, kv_tokens_headroom=100), 0.0),
        (Snapshot(kv_tokens_total=100, kv_tokens_headroom=150), 0.0),
        (Snapshot(prefill_wait_s=0.3, prefill_slack_s=0.1), 0.75),
        (Snapshot(prefill_wait_s=0.3, prefill_slack_s=0.0), 1.0),
        (Snapshot(prefill_wait_s=0.3, prefill_slack_s=inf), 0.0),
        (Snapshot(prefill_wait_s=inf, prefill_slack_s=0.0), 1.0),
        (Snapshot(prefill_wait_s=0.0, prefill_slack_s=0.0), 0.0),
        (Snapshot(kv_tokens_total=4, kv_tokens_headroom=2, prefill_wait_s=0.3, prefill_slack_s=0.1), 0.75),
    ],
)
def test_a_replica_is_as_full_as_its_scarcer_half(output: Snapshot, share: float) -> None:
    assert filling(output) == pytest.approx(share)


# Memory.


@pytest.mark.parametrize(
    ("window_s", "look_s", "looks"),
    [(8 * 3600.0, 10.0, 4000), (300.0, 0.25, 2400), (0.0, 0.0, 300)],
    ids=["eight hours", "four looks a second", "all at once"],
)
def test_a_memory_does_not_grow_with_the_number_of_observations(
    window_s: float, look_s: float, looks: int
) -> None:
    patient = replace(POOL, scale_up_window_s=window_s, scale_down_window_s=window_s)
    memory = AutoscalerState()
    for look in range(looks):
        demand = seen(chat(60, refused=look % 7), pool_of(1 + look % 3), desired=2, elapsed_s=look_s)
        memory = decide_replicas(patient, demand, memory, NOW_S + look * look_s)[1]
    assert len(memory.periods) <= PERIODS + 1
    assert max(len(memory.up), len(memory.down)) <= SLOTS + 2


def test_observations_in_one_slot_count_as_one_period_of_the_fewer_replicas() -> None:
    older = Period(NOW_S - 20, 5.0, 2, 1.0, 0, 0, {})
    memory = remembering(2, periods=(older,))
    for step, ready in enumerate((2, 1, 2)):
        tiers = chat(10, refused=5, hops=8) | ({"batch": TierDemand(arrived=4)} if step else {})
        demand = seen(tiers, pool_of(ready, 0.5), elapsed_s=1.0)
        memory = decide_replicas(POOL, demand, memory, NOW_S + step)[1]
    shares = {"chat": Share(30, 15, 15, 15), "batch": Share(8, 0, 0, 0)}
    assert memory.periods == (older, Period(NOW_S + 2, 3.0, 1, 1.0, 24, 9, shares))


def test_the_extreme_of_a_slot_counts_until_the_slot_is_out_of_the_window() -> None:
    often = replace(POOL, scale_up_window_s=60.0, scale_down_window_s=60.0)
    earlier = (ScalingDecision(NOW_S - 30, 4),)
    memory = remembering(4, up=earlier, down=earlier)
    for step, share in enumerate((0.9, 0.1, 0.9, 0.1)):
        demand = seen({}, pool_of(4, share), elapsed_s=0.1)
        memory = decide_replicas(often, demand, memory, NOW_S + step * 0.1)[1]
    assert memory.up == (*earlier, ScalingDecision(NOW_S + 0.1 * 3, 1))
    assert memory.down == (*earlier, ScalingDecision(NOW_S + 0.1 * 3, 4))


def test_a_memory_from_the_future_is_dropped() -> None:
    later = Period(NOW_S + 100, 15.0, 2, 0.5, 60, 60, {"chat": Share(60, 60, 0, 0)})
    memory = remembering(2, periods=(later,), down=(ScalingDecision(NOW_S + 100, 9),))
    decision, after = decide_replicas(POOL, seen(chat(60), HALF), memory, NOW_S)
    assert decision.replicas == 2
    assert [period.ended_s for period in after.periods] == [NOW_S]
    assert [requested.at_s for requested in after.down] == [NOW_S - PERIOD_S, NOW_S]
