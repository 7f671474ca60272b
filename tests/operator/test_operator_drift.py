"""Differences between an object and its desired state, and values that only look different."""

from copy import deepcopy
from typing import Any

import pytest
from clusterless.memory_api import fields_of
from hypothesis import given
from hypothesis import strategies as st
from penstock_operator.manifests.names import FIELD_MANAGER
from penstock_operator.manifests.quantities import quantity
from penstock_operator.reconcile.drift import Difference, differences, drift

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
def test_equal_values_in_other_notations_are_not_drift(wanted: Any, seen: Any) -> None:
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


WANTED: dict[str, Any] = {
    "metadata": {"name": "chat", "labels": {"a": "1"}},
    "spec": {
        "replicas": 2,
        "selector": {"pool": "chat"},
        "template": {
            "containers": [
                {"name": "router", "image": "router:1", "args": ["-v"], "ports": [{"containerPort": 80}]},
                {"name": "logs", "resources": {"limits": {"memory": "1Gi"}}},
            ]
        },
    },
}


def owned(of: dict[str, Any], manager: str = FIELD_MANAGER) -> dict[str, Any]:
    """An object of which a manager owns all that is in `of`."""
    entry = {"manager": manager, "operation": "Apply", "fieldsV1": fields_of(of)}
    found = deepcopy(WANTED)
    found["metadata"]["managedFields"] = [
        {"manager": FIELD_MANAGER, "operation": "Apply", "subresource": "status", "fieldsV1": {}},
        {"manager": "kubectl", "operation": "Update", "fieldsV1": fields_of(WANTED)},
        entry,
    ]
    return found


def change(document: dict[str, Any], path: str, value: Any) -> None:
    *steps, last = [int(step) if step.isdigit() else step for step in path.split("/")]
    place: Any = document
    for step in steps:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value


CHANGES = [
    ("spec/replicas", 3, "spec.replicas"),
    ("spec/replicas", None, "spec.replicas"),
    ("spec/selector", {"pool": "chat", "more": "1"}, "spec.selector"),
    ("metadata/labels/a", "2", "metadata.labels.a"),
    ("spec/template/containers/0/image", "mirror/router:1", "spec.template.containers[router].image"),
    ("spec/template/containers/0/args", ["-v", "-q"], "spec.template.containers[router].args"),
    (
        "spec/template/containers/0/ports",
        [{"containerPort": 81}],
        "spec.template.containers[router].ports[80]",
    ),
    ("spec/template/containers/1", None, "spec.template.containers[logs]"),
    (
        "spec/template/containers/1/resources/limits/memory",
        "2Gi",
        "spec.template.containers[logs].resources.limits.memory",
    ),
]


@pytest.mark.parametrize(("path", "value", "reported"), CHANGES)
def test_a_field_that_the_operator_still_owns_was_changed_by_admission(
    path: str, value: Any, reported: str
) -> None:
    seen = owned(WANTED)
    change(seen, path, value)
    assert drift(WANTED, seen) == ()
    assert differences(WANTED, seen) == (
        Difference(reported, absent="ports" in path or value is None, owned=True),
    )


@pytest.mark.parametrize(("path", "value", "reported"), CHANGES)
def test_a_field_that_another_manager_owns_drifts(path: str, value: Any, reported: str) -> None:
    left = deepcopy(WANTED)
    change(left, path.removesuffix("/limits/memory").removesuffix("/a"), None)
    seen = owned(left)
    change(seen, path, value)
    assert drift(WANTED, seen) == (reported,)


@pytest.mark.parametrize(
    "of_others",
    [owned(WANTED, "somebody"), {**WANTED, "metadata": {}}],
    ids=["another manager's", "nobody says"],
)
def test_an_object_without_fields_of_the_operator_drifts(of_others: dict[str, Any]) -> None:
    seen = deepcopy(of_others)
    change(seen, "spec/replicas", 3)
    assert "spec.replicas" in drift(WANTED, seen)


@pytest.mark.parametrize("path", ["resources/limits", "resources/limits/memory"])
def test_a_limit_that_admission_removed_counts_as_changed(path: str) -> None:
    seen = owned(WANTED)
    change(seen, f"spec/template/containers/1/{path}", None)
    (difference,) = differences(WANTED, seen)
    assert (difference.owned, difference.absent) == (True, False)


def test_an_entry_whose_fields_others_own_drifts() -> None:
    seen = owned(WANTED)
    containers = seen["metadata"]["managedFields"][-1]["fieldsV1"]["f:spec"]["f:template"]["f:containers"]
    containers['k:{"name":"router"}'] = {}
    change(seen, "spec/template/containers/0/image", "other:1")
    assert drift(WANTED, seen) == ("spec.template.containers[router].image",)


def test_an_omitted_key_of_an_entry_has_its_default() -> None:
    wanted = {"spec": {"ports": [{"containerPort": 80, "name": "http"}]}}
    seen: dict[str, Any] = {"spec": {"ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}]}}
    fields: dict[str, Any] = {
        "f:spec": {"f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {"f:name": {}}}}
    }
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields}
    assert drift(wanted, {**seen, "metadata": {"managedFields": [entry]}}) == ()


SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=12,
)


@given(JSON)
def test_equal_objects_have_no_drift(value: Any) -> None:
    assert drift({"spec": value}, {"spec": value}) == ()


@given(st.dictionaries(st.text(max_size=4), JSON, max_size=3), st.dictionaries(st.text(max_size=4), JSON))
def test_additional_fields_are_not_drift(wanted: Any, more: Any) -> None:
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
def test_equal_quantities_in_other_notations_are_equal(one: str, other: str | int) -> None:
    assert quantity(one) == quantity(other) is not None


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1gi", "one", "1.2.3"])
def test_an_invalid_quantity_has_no_value(text: str) -> None:
    assert quantity(text) is None
