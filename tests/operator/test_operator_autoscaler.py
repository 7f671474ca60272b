"""What of autoscaling is the operator's: where it begins, its largest steps, what it keeps over restarts."""

from typing import Any

import pytest
from penstock_core.autoscaling.demand import Demand, ReplicaDemand, ReplicaState, TierDemand
from penstock_core.autoscaling.memory import Memory
from penstock_core.autoscaling.terms import Decision, Reason
from penstock_operator.autoscaler import KEPT_S, Scaler, remembered, replicas_now, scales, stepped
from penstock_pool import Pool, parse_pool


def pool(replicas: int = 2, **autoscaling: Any) -> Pool:
    told = {"minReplicas": 1, "maxReplicas": 8, "scaleUp": {"stabilizationWindow": "0s"}} | autoscaling
    document = {
        "apiVersion": "penstock.dev/v1alpha1",
        "kind": "ServingPool",
        "metadata": {"name": "chat"},
        "spec": {
            "model": {"name": "llama"},
            "engine": {"type": "simulated", "timeModel": "llama-3-8b-a100"},
            "replicas": replicas,
            "tiers": [{"name": "chat", "slo": {"ttft": "1s", "tpot": "100ms"}}],
            "autoscaling": told,
        },
    }
    return parse_pool(document, "pool")


def refused(desired: int, elapsed_s: float = 10.0) -> Demand:
    """Six of ten requests found no replica that could keep their SLOs."""
    tier = TierDemand(arrived=100, admitted=40, rejected=60, hops=100)
    ready = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(desired))
    return Demand(elapsed_s, desired, {"chat": tier}, replicas=ready)


def quiet(desired: int) -> Demand:
    ready = tuple(ReplicaDemand(f"r{i}", ReplicaState.READY) for i in range(desired))
    return Demand(10.0, desired, {"chat": TierDemand()}, replicas=ready)


def test_decision_counts_while_it_began_with_what_the_spec_says() -> None:
    status = {"autoscaling": {"replicas": 5, "startedFrom": 2}}
    assert replicas_now(pool(replicas=2), status) == 5
    assert replicas_now(pool(replicas=3), status) == 3
    assert replicas_now(pool(replicas=2), {}) == 2


def test_narrower_bounds_hold_at_once() -> None:
    status = {"autoscaling": {"replicas": 8, "startedFrom": 2}}
    assert replicas_now(pool(maxReplicas=4), status) == 4
    assert replicas_now(pool(minReplicas=2), {"autoscaling": {"replicas": 1, "startedFrom": 2}}) == 2


def test_pool_that_names_no_number_begins_with_its_least() -> None:
    assert replicas_now(pool(replicas=1, minReplicas=2), {}) == 2


def test_pool_that_somebody_else_scales_has_what_its_spec_says() -> None:
    by_hpa = pool(by="hpa")
    assert not scales(by_hpa)
    assert replicas_now(by_hpa, {"autoscaling": {"replicas": 5, "startedFrom": 2}}) == 2


def test_refused_demand_is_more_replicas_with_a_reason_and_the_time() -> None:
    scaler = Scaler()
    first = scaler.look(pool(), {}, refused(desired=2), now_s=0.0)
    assert "lastScaleTime" not in first
    told = scaler.look(pool(), {"autoscaling": dict(first)}, refused(desired=2), now_s=10.0)
    assert told["replicas"] > 2
    assert told["startedFrom"] == 2
    assert told["reason"] == Reason.REFUSED
    assert told["lastScaleTime"] == "1970-01-01T00:00:10Z"


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
    decision = stepped(pool(**steps), desired, Decision(decided, Reason.REFUSED, "half was refused"))
    assert decision.replicas == stepped_to
    assert ("maxStep" in decision.message) is (stepped_to != decided)


def test_restarted_operator_goes_on_with_the_memory_in_the_status() -> None:
    first = Scaler()
    told = first.look(pool(), {}, refused(desired=2), now_s=1000.0)
    assert remembered(told["memory"]) == first.memory
    second = Scaler()
    second.look(pool(), {"autoscaling": dict(told)}, quiet(told["replicas"]), now_s=1010.0)
    assert second.memory is not None
    assert second.memory.asked[0].at_s < 1010.0


def test_memory_is_not_written_with_every_look() -> None:
    scaler = Scaler()
    status: dict[str, Any] = {"autoscaling": dict(scaler.look(pool(), {}, quiet(2), now_s=1000.0))}
    for look in range(1, 5):
        told = scaler.look(pool(), status, quiet(2), now_s=1000.0 + look)
        assert told["memory"] == status["autoscaling"]["memory"]
        status = {"autoscaling": dict(told)}
    kept = scaler.look(pool(), status, quiet(2), now_s=1001.0 + KEPT_S)
    assert kept["memory"] != status["autoscaling"]["memory"]


def test_other_number_in_the_spec_begins_anew() -> None:
    scaler = Scaler()
    told = scaler.look(pool(), {}, refused(desired=2), now_s=1000.0)
    anew = scaler.look(pool(replicas=3), {"autoscaling": dict(told)}, quiet(3), now_s=1010.0)
    assert anew["startedFrom"] == 3
    assert anew["replicas"] == 3


@pytest.mark.parametrize("text", ["", "nonsense", "{}", '{"periods": 1, "asked": [], "capacityRps": null}'])
def test_memory_that_cannot_be_read_is_begun_anew(text: str) -> None:
    assert remembered(text) == Memory()
