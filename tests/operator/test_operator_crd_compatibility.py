"""Whether the cluster's ServingPool and the operator's are of one release."""

import copy

import pytest
from penstock_operator.cluster.crd_compatibility import fields, judge, published
from penstock_pool.crd.definition import schema
from penstock_runtime.serving import StartError

OURS = set(fields(schema()))


def test_fields_are_named_as_people_write_them() -> None:
    assert {"spec.replicas", "spec.tiers[].slo.tpot", "status.conditions[].reason"} <= OURS


def test_same_release_says_nothing() -> None:
    assert judge(OURS, OURS) == []


def test_older_definition_is_said_with_what_it_lacks() -> None:
    (line,) = judge(OURS, OURS - {"spec.ingress"})
    assert "older" in line
    assert "spec.ingress" in line
    assert "kubectl apply" in line


def test_newer_definition_is_said_with_what_is_unknown_here() -> None:
    (line,) = judge(OURS, OURS | {"spec.teleport"})
    assert "newer" in line
    assert "spec.teleport" in line


def test_definition_that_cannot_hold_the_status_stops_the_operator() -> None:
    with pytest.raises(StartError, match=r"older than the operator.*status\.autoscaling\.startedFrom"):
        judge(OURS, OURS - {"status.autoscaling.startedFrom"})


def test_schema_is_found_on_the_page_by_its_kind() -> None:
    kind = {"group": "penstock.dev", "kind": "ServingPool", "version": "v1alpha1"}
    ours = copy.deepcopy(schema()) | {"x-kubernetes-group-version-kind": [kind]}
    page = {"components": {"schemas": {"other": {"type": "object"}, "pool": ours}}}
    found = published(page)
    assert found is not None
    assert set(fields(found)) == OURS
    assert published({"components": {"schemas": {}}}) is None
