"""Decisions one after the other, on a pool whose replicas each take so many requests a second and no more.

Not a simulation of a fleet: a fluid that is admitted up to what the ready replicas take, and refused beyond.
It is enough to see whether the number settles, where, and whether it stays.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from penstock_core.autoscaling.decision import decide_replicas
from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.autoscaling.memory import PERIODS, SLOTS, AutoscalerState
from penstock_core.autoscaling.terms import Decision, Scaling, ScalingReason
from penstock_core.forecast.snapshot import Snapshot

from examples import examples

POOL = Scaling(min_replicas=1, max_replicas=20)
HOUR_S = 3600.0


@dataclass
class Pool:
    """A fluid. reported: utilization that replicas report, as a share of the real one."""

    scaling: Scaling
    takes_rps: float
    replicas: int = 1
    startup_s: float = 60.0
    period_s: float = 15.0
    reported: float = 1.0
    memory: AutoscalerState = field(default_factory=AutoscalerState)
    ready_s: list[float] = field(default_factory=list)

    def run(self, offered_rps: Callable[[float], float], seconds: float) -> list[Decision]:
        """Decisions, one a period."""
        self.ready_s = self.ready_s or [0.0] * self.replicas
        decisions, now_s = [], 0.0
        while now_s < seconds:
            rate_rps = offered_rps(now_s)
            decision, self.memory = decide_replicas(
                self.scaling, self.demand(now_s, rate_rps), self.memory, now_s
            )
            decisions.append(decision)
            self.become(decision.replicas, now_s)
            now_s += self.period_s
        return decisions

    def demand(self, now_s: float, rate_rps: float) -> DemandObservation:
        ready = sum(ready_s <= now_s for ready_s in self.ready_s)
        arrived = round(rate_rps * self.period_s)
        admitted = min(arrived, round(ready * self.takes_rps * self.period_s))
        filled = self.reported * admitted / max(ready * self.takes_rps * self.period_s, 1)
        output = Snapshot(
            running=min(admitted, 1), kv_tokens_total=10_000, kv_tokens_headroom=round(10_000 * (1 - filled))
        )
        tier = TierDemand(arrived, admitted, arrived - admitted, 0, arrived, admitted, admitted)
        replicas = [
            ReplicaDemand(f"r{i}", ReplicaState.READY, output)
            if ready_s <= now_s
            else ReplicaDemand(f"r{i}", ReplicaState.STARTING)
            for i, ready_s in enumerate(self.ready_s)
        ]
        return DemandObservation(self.period_s, len(self.ready_s), {"chat": tier}, 0, tuple(replicas))

    def become(self, replicas: int, now_s: float) -> None:
        more = replicas - len(self.ready_s)
        self.ready_s = (
            [*self.ready_s, *[now_s + self.startup_s] * more] if more > 0 else self.ready_s[:replicas]
        )


def constant(rate_rps: float) -> Callable[[float], float]:
    return lambda now_s: rate_rps


def numbers(decisions: list[Decision]) -> list[int]:
    return [decision.replicas for decision in decisions]


def turns(decisions: list[Decision]) -> int:
    """How often the number went another way than before."""
    counts = numbers(decisions)
    moves = [after - before for before, after in pairwise(counts) if after != before]
    return sum(one * other < 0 for one, other in pairwise(moves))


rates = st.floats(0.5, 60.0)
starts = st.integers(1, 20)


@given(rates, starts, st.sampled_from([0.8, 1.0]))
@examples(8)
def test_a_constant_load_settles_at_a_constant_number(
    rate_rps: float, replicas: int, reported: float
) -> None:
    pool = Pool(POOL, takes_rps=4.0, replicas=replicas, reported=reported)
    decisions = pool.run(constant(rate_rps), 1.5 * HOUR_S)
    assert turns(decisions) <= 2
    assert len(set(numbers(decisions[-60:]))) == 1
    carried = min(decisions[-1].replicas * 4.0, rate_rps)
    assert carried >= 0.95 * rate_rps


def test_fewer_replicas_are_rarely_tried_while_replicas_report_low_load() -> None:
    pool = Pool(POOL, takes_rps=4.0, reported=0.3)
    decisions = pool.run(constant(9.0), 3 * HOUR_S)
    settled = numbers(decisions)[40:]
    assert set(settled) == {2, 3}
    assert turns(decisions) <= 6
    assert settled.count(2) < 0.05 * len(settled)


@given(rates)
@examples(8)
def test_replicas_are_removed_as_the_load_falls(rate_rps: float) -> None:
    pool = Pool(POOL, takes_rps=4.0)
    decisions = pool.run(lambda now_s: rate_rps if now_s < 900 else 0.5, 1.5 * HOUR_S)
    assert decisions[-1].replicas == 1
    assert turns(decisions) <= 2


@given(st.lists(st.floats(0.0, 100.0), min_size=1, max_size=12), st.integers(0, 3), st.integers(0, 8))
@examples(15)
def test_every_load_keeps_to_bounds_and_windows(loads: list[float], fewest: int, more: int) -> None:
    scaling = replace(POOL, min_replicas=fewest, max_replicas=max(fewest + more, 1), idle_timeout_s=120.0)
    pool = Pool(scaling, takes_rps=4.0, replicas=2)
    decisions = pool.run(lambda now_s: loads[int(now_s // 150) % len(loads)], 1800)
    counts = numbers(decisions)
    assert all(scaling.min_replicas <= count <= scaling.max_replicas for count in counts)
    rises = [step * pool.period_s for step in range(1, len(counts)) if counts[step] > counts[step - 1]]
    for step in range(1, len(counts)):
        if counts[step] < counts[step - 1] and decisions[step].reason is ScalingReason.SURPLUS:
            recent = [at_s for at_s in rises if step * pool.period_s - 300.0 <= at_s < step * pool.period_s]
            assert not recent
            assert counts[step] >= counts[step - 1] - max(counts[step - 1] // 4, 1)


@given(st.integers(1, 300), st.integers(1, 6), st.data())
def test_more_refusals_never_require_fewer_replicas(arrived: int, ready: int, data: st.DataObject) -> None:
    few = data.draw(st.integers(0, arrived))
    many = data.draw(st.integers(few, arrived))
    memory = Pool(POOL, takes_rps=4.0, replicas=ready).memory
    output = Snapshot(running=1, kv_tokens_total=100, kv_tokens_headroom=50)
    replicas = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY, output) for i in range(ready))

    def asked(refused: int) -> int:
        tier = TierDemand(arrived, arrived - refused, refused, 0, arrived)
        demand = DemandObservation(15.0, ready, {"chat": tier}, 0, replicas)
        return decide_replicas(POOL, demand, replace(memory, ready=ready), 1000.0)[0].replicas

    assert asked(few) <= asked(many)


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=20))
def test_replicas_never_fall_below_the_capacity_that_admitted_requests_use(shares: list[float]) -> None:
    hasty = replace(POOL, scale_down_window_s=0.0)
    output = [Snapshot(1, kv_tokens_total=10_000, kv_tokens_headroom=round(10_000 * (1 - s))) for s in shares]
    replicas = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY, one) for i, one in enumerate(output))
    demand = DemandObservation(15.0, len(replicas), {}, 0, replicas)
    decision, _ = decide_replicas(hasty, demand, AutoscalerState(), 1000.0)
    assert decision.replicas >= min(sum(shares), POOL.max_replicas) - 0.01


@given(st.sampled_from([0.25, 0.5, 2.0, 4.0]), rates, starts)
@examples(6)
def test_a_pool_at_another_speed_is_scaled_in_the_same_way(
    slower: float, rate_rps: float, replicas: int
) -> None:
    """All durations and rates stretched together: the same decisions."""
    arrived = max(round(rate_rps * 15), 1)  # whole requests a period in both
    usual = Pool(POOL, takes_rps=4.0, replicas=replicas)
    stretched = replace(
        POOL,
        observed_s=POOL.observed_s * slower,
        scale_down_window_s=POOL.scale_down_window_s * slower,
        idle_timeout_s=POOL.idle_timeout_s * slower,
        forget_s=POOL.forget_s * slower,
    )
    other = Pool(stretched, 4.0 / slower, replicas, 60.0 * slower, 15.0 * slower)
    expected = usual.run(constant(arrived / 15), 1500)
    assert numbers(expected) == numbers(other.run(constant(arrived / 15 / slower), 1500 * slower))


def test_a_doubled_load_is_met_within_two_startups() -> None:
    pool = Pool(POOL, takes_rps=4.0, replicas=2)
    decisions = pool.run(lambda now_s: 6.0 if now_s < 600 else 30.0, 1200)
    enough = next(step * 15.0 for step, count in enumerate(numbers(decisions)) if count * 4.0 >= 30.0)
    assert enough <= 600 + 2 * pool.startup_s


def test_a_lost_state_does_not_change_the_number_of_a_settled_pool() -> None:
    pool = Pool(POOL, takes_rps=4.0, replicas=2)
    before = pool.run(constant(20.0), HOUR_S)[-1].replicas
    pool.memory = AutoscalerState()
    again = [decision.replicas for decision in pool.run(constant(20.0), 240.0)]
    assert set(again) == {before}


observations = st.tuples(
    st.just(0.0) | st.floats(1e-3, 40_000.0),  # seconds since the one before, as a clock shows them
    st.integers(0, 5),  # ready
    st.lists(st.tuples(st.integers(0, 15), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=16),
)


@given(st.lists(observations, max_size=40), st.integers(1, 100), st.floats(0.0, 30_000.0))
@examples(60)
def test_a_memory_is_bounded_whatever_is_observed(
    found: list[tuple[float, int, list[tuple[int, int, int]]]], often: int, window_s: float
) -> None:
    scaling = replace(POOL, scale_up_window_s=window_s / 2, scale_down_window_s=window_s)
    memory, now_s = AutoscalerState(), 0.0
    for elapsed_s, ready, counts in found:
        replicas = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(ready))
        tiers = {
            f"t{i:062}": TierDemand(arrived + refused, arrived, refused) for i, arrived, refused in counts
        }
        for _ in range(often):
            now_s += elapsed_s / often
            demand = DemandObservation(elapsed_s / often, ready, tiers, 0, replicas)
            memory = decide_replicas(scaling, demand, memory, now_s)[1]
    assert len(repr(memory)) < 64 * 1024
    assert len(memory.periods) <= PERIODS + 1
    assert max(len(memory.up), len(memory.down)) <= SLOTS + 2
