"""Where an object differs from what was asked for, and where it only looks so."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_operator.drift import drift
from penstock_operator.quantity import quantity

CONTAINERS = {"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}


@pytest.mark.parametrize(
    ("wanted", "seen"),
    [
        ({"spec": {"replicas": 2}}, {"spec": {"replicas": 2, "minReadySeconds": 0}, "status": {}}),
        (
            CONTAINERS,
            {"containers": [{"name": "b", "image": "b:1"}, {"name": "a", "image": "a:1", "tty": 0}]},
        ),
        (CONTAINERS, {"containers": [{"name": "mesh"}, *CONTAINERS["containers"]]}),
        ({"limits": {"cpu": "1000m", "memory": "1024Mi"}}, {"limits": {"cpu": "1", "memory": "1Gi"}}),
        ({"limits": {"nvidia.com/gpu": 2}}, {"limits": {"nvidia.com/gpu": "2"}}),
        ({"emptyDir": {"sizeLimit": "0.5Gi"}}, {"emptyDir": {"sizeLimit": "512Mi"}}),
        ({"emptyDir": {}, "env": [], "hostNetwork": False, "priorityClassName": ""}, {}),
        ({"podSelector": {}}, {"podSelector": {}}),
        ({"args": []}, {"args": None}),
        (
            {"ports": [{"containerPort": 80}]},
            {"ports": [{"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81}]},
        ),
        (
            {"ports": [{"port": 80, "targetPort": 8080}]},
            {"ports": [{"port": 80, "targetPort": 8080, "nodePort": 30000}]},
        ),
        (
            {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]},
            {"volumeMounts": [{"name": "v", "mountPath": "/b"}, {"name": "v", "mountPath": "/a"}]},
        ),
    ],
    ids=[
        "defaults",
        "order of a map",
        "injected container",
        "quantities",
        "number and text",
        "size",
        "empty and absent",
        "empty and there",
        "empty and null",
        "container ports",
        "service ports",
        "mounts by path",
    ],
)
def test_what_only_looks_different_is_no_drift(wanted: Any, seen: Any) -> None:
    assert drift(wanted, seen) == ()


@pytest.mark.parametrize(
    ("wanted", "seen", "paths"),
    [
        ({"spec": {"replicas": 2}}, {"spec": {"replicas": 3}}, ["spec.replicas"]),
        ({"spec": {"replicas": 0}}, {"spec": {}}, ["spec.replicas"]),
        ({"spec": {"replicas": 2}}, {}, ["spec"]),
        (CONTAINERS, {"containers": [CONTAINERS["containers"][0]]}, ["containers[b]"]),
        (
            CONTAINERS,
            {"containers": [{"name": "a", "image": "a:2"}, {"name": "b", "image": "b:1"}]},
            ["containers[a].image"],
        ),
        ({"args": ["-v"]}, {"args": ["-v", "-v"]}, ["args"]),
        ({"args": ["a", "b"]}, {"args": ["b", "a"]}, ["args[0]", "args[1]"]),
        ({"ports": [{"port": 80}]}, {"ports": [{"port": 80}, {"port": 22}]}, ["ports"]),
        (
            {"limits": {"nvidia.com/gpu": "1"}},
            {"limits": {"nvidia.com/gpu": "2"}},
            ["limits[nvidia.com/gpu]"],
        ),
        ({"limits": {"cpu": "1"}}, {"limits": {}}, ["limits.cpu"]),
        ({"labels": {"a.b/c": "x"}}, {"labels": {}}, ["labels[a.b/c]"]),
        ({"allowPrivilegeEscalation": False}, {}, ["allowPrivilegeEscalation"]),
        ({"readOnly": True}, {}, ["readOnly"]),
        ({"enabled": True}, {"enabled": 1}, ["enabled"]),
        ({"metadata": {"ownerReferences": [{"uid": "u"}]}}, {"metadata": {}}, ["metadata.ownerReferences"]),
        ({"selector": {"a": "b"}}, {"selector": {"a": "b", "c": "d"}}, ["selector"]),
        ({"podSelector": {}}, {"podSelector": {"matchLabels": {"a": "b"}}}, ["podSelector"]),
        (
            {"initContainers": [{"name": "copy"}, {"name": "engine"}]},
            {"initContainers": [{"name": "engine"}, {"name": "copy"}]},
            ["initContainers"],
        ),
    ],
    ids=[
        "number",
        "none and one",
        "whole part",
        "container gone",
        "image",
        "longer list",
        "order of a list",
        "rule added",
        "quantity",
        "limit gone",
        "label gone",
        "absence that means yes",
        "flag gone",
        "number for a flag",
        "owner gone",
        "condition added",
        "condition where all are meant",
        "order of init containers",
    ],
)
def test_drift_is_named_by_its_path(wanted: Any, seen: Any, paths: list[str]) -> None:
    assert drift(wanted, seen) == tuple(paths)


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_nothing_drifts_from_itself(value: Any) -> None:
    assert drift(value, value) == ()


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.dictionaries(st.text(max_size=4), JSON))
def test_whatever_is_there_besides_is_no_drift(wanted: Any, more: Any) -> None:
    assert drift(wanted, {**more, **wanted}) == ()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("1", 1),
        ("1000m", "1"),
        ("1Ki", "1024"),
        ("1.5Gi", "1536Mi"),
        ("1e3", "1k"),
        (".5", "500m"),
        ("2E", "2e18"),
    ],
)
def test_equal_quantities_are_equal_however_they_are_written(one: str, other: str | int) -> None:
    assert quantity(one) == quantity(other) is not None


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "one", "1.2.3"])
def test_what_is_no_quantity_has_no_value(text: str) -> None:
    assert quantity(text) is None
