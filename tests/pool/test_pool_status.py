"""A status, as an operator writes it and Kubernetes stores it."""

import pytest
from penstock_pool.crd import definition
from penstock_pool.status import CONDITIONS, AutoscalingStatus, PoolCondition, PoolStatus, TierStatus
from pydantic import ValidationError

READY = PoolCondition(
    type="Ready", status="True", reason="Serving", last_transition_time="2026-01-02T03:04:05Z"
)
FULL = PoolStatus(
    observed_generation=3,
    replicas=2,
    ready_replicas=2,
    updated_replicas=1,
    selector="penstock.dev/pool=demo",
    policy="slos-serve",
    attainment="98.2%",
    tiers=(TierStatus(name="chat", attainment=0.982, requests=500),),
    conditions=(READY,),
    autoscaling=AutoscalingStatus(replicas=2, reason="steady"),
)


def test_a_status_is_stored_by_kubernetes_names() -> None:
    document = FULL.document()
    assert document["observedGeneration"] == 3
    assert document["tiers"] == [{"name": "chat", "attainment": 0.982, "requests": 500}]
    assert document["conditions"][0]["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert "lastScaleTime" not in document["autoscaling"]


def test_a_status_reads_back_unchanged() -> None:
    assert PoolStatus.model_validate(FULL.document()) == FULL


def test_fields_that_were_not_observed_are_zero_or_absent() -> None:
    document = PoolStatus().document()
    assert document["replicas"] == 0
    assert "autoscaling" not in document
    assert (READY.observed_generation, READY.message) == (0, "")
    untouched = TierStatus(name="chat")
    assert (untouched.requests, untouched.attainment) == (0, None)
    assert {value for value in document.values() if isinstance(value, int)} == {0}


def test_a_reason_is_one_word() -> None:
    with pytest.raises(ValidationError, match="pattern"):
        PoolCondition(type="Ready", status="True", reason="two words", last_transition_time="x")


def test_every_condition_is_explained() -> None:
    schema = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    reported = schema["properties"]["status"]["properties"]["conditions"]["description"]
    assert [name for name in CONDITIONS if f"{name}: " not in reported] == []
