"""The operator's part of autoscaling: initial numbers, largest steps, and the state kept over restarts."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_core.autoscaling.demand import DemandObservation, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.autoscaling.memory import AutoscalerState
from penstock_core.autoscaling.terms import Decision, ScalingReason
from penstock_core.forecast.snapshot import Snapshot
from penstock_operator.autoscaling.autoscaler import (
    REASON_PERIOD_S,
    Autoscaler,
    current_replicas,
    is_autoscaled,
    limit_step,
)
from penstock_pool import Pool, parse_pool

from examples import examples


def pool(replicas: int = 2, **autoscaling: Any) -> Pool:
    reported = {"minReplicas": 1, "maxReplicas": 8, "scaleUp": {"stabilizationWindow": "0s"}} | autoscaling
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"name": "llama"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "replicas": replicas,
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
            "autoscaling": reported,
        },
    }
    return parse_pool(document, "pool")


def refused(desired: int, elapsed_s: float = 10.0) -> DemandObservation:
    """Six of ten requests found no replica that could keep their SLOs."""
    tier = TierDemand(arrived=100, admitted=40, rejected=60, hops=100)
    ready = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(desired))
    return DemandObservation(elapsed_s, desired, {"chat": tier}, replicas=ready)


def quiet(desired: int) -> DemandObservation:
    ready = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(desired))
    return DemandObservation(10.0, desired, {"chat": TierDemand()}, replicas=ready)


def filled(desired: int, share: float) -> DemandObservation:
    """So full that one fewer is not enough."""
    output = Snapshot(running=1, kv_tokens_total=1000, kv_tokens_headroom=round(1000 * (1 - share)))
    ready = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY, output) for i in range(desired))
    return DemandObservation(10.0, desired, {"chat": TierDemand()}, replicas=ready)


def test_an_autoscaling_decision_counts_until_the_specs_replicas_change() -> None:
    status = {"autoscaling": {"replicas": 5, "startedFrom": 2}}
    assert current_replicas(pool(replicas=2), status) == 5
    assert current_replicas(pool(replicas=3), status) == 3
    assert current_replicas(pool(replicas=2), {}) == 2


def test_narrower_bounds_apply_immediately() -> None:
    status = {"autoscaling": {"replicas": 8, "startedFrom": 2}}
    assert current_replicas(pool(maxReplicas=4), status) == 4
    assert current_replicas(pool(minReplicas=2), {"autoscaling": {"replicas": 1, "startedFrom": 2}}) == 2


def test_a_pool_without_a_number_starts_with_its_minimum() -> None:
    assert current_replicas(pool(replicas=1, minReplicas=2), {}) == 2


def test_an_externally_scaled_pool_has_the_replicas_of_its_spec() -> None:
    by_hpa = pool(by="hpa")
    assert not is_autoscaled(by_hpa)
    assert current_replicas(by_hpa, {"autoscaling": {"replicas": 5, "startedFrom": 2}}) == 2


def test_refused_demand_adds_replicas_with_a_reason_and_a_time() -> None:
    scaler = Autoscaler()
    first = scaler.decide_scaling(pool(), {}, refused(desired=2), now_s=0.0)
    assert "lastScaleTime" not in first
    reported = scaler.decide_scaling(pool(), {"autoscaling": dict(first)}, refused(desired=2), now_s=10.0)
    assert reported["replicas"] > 2
    assert reported["startedFrom"] == 2
    assert reported["reason"] == ScalingReason.REFUSED
    assert reported["lastScaleTime"] == "1970-01-01T00:00:10Z"


@pytest.mark.parametrize(
    ("desired", "decided", "steps", "stepped_to"),
    [
        (2, 6, {"scaleUp": {"maxStep": 2}}, 4),
        (6, 1, {"scaleDown": {"maxStep": 1}}, 5),
        (2, 3, {"scaleUp": {"maxStep": 2}, "scaleDown": {"maxStep": 1}}, 3),
        (2, 8, {}, 8),
    ],
)
def test_no_step_is_larger_than_the_pool_allows(
    desired: int, decided: int, steps: dict[str, Any], stepped_to: int
) -> None:
    decision = limit_step(
        pool(**steps), desired, Decision(decided, ScalingReason.REFUSED, "half was refused")
    )
    assert decision.replicas == stepped_to
    assert ("maxStep" in decision.message) is (stepped_to != decided)


def test_a_restarted_operator_continues_with_the_learned_capacity() -> None:
    first = Autoscaler()
    first.decide_scaling(pool(), {}, refused(desired=2, elapsed_s=0.0), now_s=990.0)
    reported = first.decide_scaling(
        pool(), {"autoscaling": {"startedFrom": 2}}, refused(desired=2), now_s=1000.0
    )
    learned = first.capacity_rps(None)
    assert learned is not None
    second = Autoscaler()
    assert second.capacity_rps(learned) == learned
    second.decide_scaling(
        pool(), {"autoscaling": dict(reported)}, quiet(reported["replicas"]), 1010.0, learned
    )
    assert second.memory is not None
    assert second.memory.capacity_rps == pytest.approx(learned, rel=0.01)


@pytest.mark.parametrize(
    ("written", "known", "kept"),
    [
        (None, None, None),
        (None, 2.0, 2.0),
        (2.0, 2.19, 2.0),
        (10.0, 11.0, 10.0),
        (2.0, 2.21, 2.21),
        (2.0, 1.0, 1.0),
        (2.0, None, None),
    ],
)
def test_capacity_is_written_again_after_a_change_of_ten_percent(
    written: float | None, known: float | None, kept: float | None
) -> None:
    assert Autoscaler(memory=AutoscalerState(capacity_rps=known)).capacity_rps(written) == kept


def test_a_reason_for_an_unchanged_number_is_reported_at_most_once_a_minute() -> None:
    scaler = Autoscaler()
    status: dict[str, Any] = {"autoscaling": dict(scaler.decide_scaling(pool(), {}, quiet(2), now_s=1000.0))}
    before = status["autoscaling"]
    busy = filled(2, 0.7)
    for decide_scaling in range(1, 6):
        reported = scaler.decide_scaling(pool(), status, busy, now_s=1000.0 + decide_scaling)
        assert reported == before
    later = scaler.decide_scaling(pool(), status, busy, now_s=1000.0 + REASON_PERIOD_S)
    assert later["replicas"] == before["replicas"]
    assert later["reason"] != before["reason"]
    assert (
        scaler.decide_scaling(
            pool(), {"autoscaling": dict(later)}, filled(2, 0.69), now_s=1001.0 + REASON_PERIOD_S
        )
        == later
    )


@given(
    st.lists(
        st.tuples(st.just(0.0) | st.floats(1e-3, 30_000.0), st.integers(0, 10**6), st.integers(0, 8)),
        max_size=60,
    ),
    st.sampled_from(["0s", "5m", "8h"]),
)
@examples(30)
def test_the_status_is_always_small(looks: list[tuple[float, int, int]], window: str) -> None:
    scaled = pool(scaleUp={"stabilizationWindow": window}, scaleDown={"stabilizationWindow": window})
    scaler, now_s = Autoscaler(), 0.0
    reported: dict[str, Any] = {}
    for elapsed_s, more, ready in looks:
        now_s += elapsed_s
        tier = TierDemand(arrived=2 * more, admitted=more, rejected=more, hops=2 * more)
        replicas = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(ready))
        demand = DemandObservation(elapsed_s, ready, {"chat": tier}, replicas=replicas)
        reported = dict(scaler.decide_scaling(scaled, {"autoscaling": reported}, demand, now_s))
        assert len(json.dumps(reported)) < 1024
    assert "memory" not in reported


def test_another_number_in_the_spec_resets_the_autoscaler() -> None:
    scaler = Autoscaler()
    reported = scaler.decide_scaling(pool(), {}, refused(desired=2), now_s=1000.0)
    anew = scaler.decide_scaling(pool(replicas=3), {"autoscaling": dict(reported)}, quiet(3), now_s=1010.0)
    assert anew["startedFrom"] == 3
    assert anew["replicas"] == 3
