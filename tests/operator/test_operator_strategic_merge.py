"""A pod template laid over another."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from penstock_operator.objects.strategic_merge import merge_pod_template

BASE: dict[str, Any] = {
    "metadata": {"labels": {"pool": "llama"}},
    "spec": {
        "serviceAccountName": "llama-replica",
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532},
        "initContainers": [
            {
                "name": "engine",
                "args": ["--port", "8000"],
                "env": [{"name": "HOME", "value": "/home"}],
                "ports": [{"name": "engine", "containerPort": 8000}],
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            }
        ],
        "containers": [{"name": "sidecar", "image": "sidecar:1"}],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    },
}


def spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


@pytest.mark.parametrize(
    ("patch", "path", "value"),
    [
        (spec(nodeSelector={"gpu": "a100"}), "nodeSelector", {"gpu": "a100"}),
        (spec(tolerations=[{"key": "gpu"}]), "tolerations", [{"key": "gpu"}]),
        (
            spec(securityContext={"runAsUser": 1}),
            "securityContext",
            {"runAsNonRoot": True, "runAsUser": 1},
        ),
        (spec(securityContext={"runAsUser": None}), "securityContext", {"runAsNonRoot": True}),
        (spec(serviceAccountName=None), "serviceAccountName", "absent"),
        (
            spec(volumes=[{"name": "data", "emptyDir": {}}]),
            "volumes",
            [{"name": "tmp", "emptyDir": {}}, {"name": "data", "emptyDir": {}}],
        ),
        (
            spec(volumes=[{"name": "tmp", "emptyDir": {"medium": "Memory"}}]),
            "volumes",
            [{"name": "tmp", "emptyDir": {"medium": "Memory"}}],
        ),
        (
            spec(containers=[{"name": "logs", "image": "logs:1"}]),
            "containers",
            [{"name": "sidecar", "image": "sidecar:1"}, {"name": "logs", "image": "logs:1"}],
        ),
        (
            spec(initContainers=[{"name": "sidecar", "image": "mine:1"}]),
            "containers",
            [{"name": "sidecar", "image": "mine:1"}],
        ),
    ],
    ids=[
        "map added",
        "list added",
        "map merged",
        "field removed from a map",
        "field removed",
        "entry added",
        "entry merged",
        "container added",
        "container merged from the wrong list",
    ],
)
def test_a_strategic_merge_patch_sets_merges_and_deletes_fields(
    patch: dict[str, Any], path: str, value: Any
) -> None:
    assert merge_pod_template(BASE, patch)["spec"].get(path, "absent") == value


def test_a_container_named_twice_gets_both_patches() -> None:
    one, two = {"name": "engine", "tty": True}, {"name": "engine", "stdin": True}
    merged = merge_pod_template(BASE, spec(containers=[one], initContainers=[two]))["spec"]
    assert merged["initContainers"] == [{**BASE["spec"]["initContainers"][0], "tty": True, "stdin": True}]


@pytest.mark.parametrize("field", ["containers", "initContainers"])
def test_the_engine_is_found_in_either_list_of_containers(field: str) -> None:
    patch = spec(**{field: [{"name": "engine", "env": [{"name": "A", "value": "1"}], "args": ["--fast"]}]})
    merged = merge_pod_template(BASE, patch)["spec"]
    (engine,), (before,) = merged["initContainers"], BASE["spec"]["initContainers"]
    assert engine == {**before, "env": [*before["env"], {"name": "A", "value": "1"}], "args": ["--fast"]}
    assert merged["containers"] == BASE["spec"]["containers"]


def test_an_entry_without_a_key_replaces_the_list_and_is_left_to_the_api_server() -> None:
    merged = merge_pod_template(BASE, spec(volumes=[{"emptyDir": {}}]))
    assert merged["spec"]["volumes"] == [{"emptyDir": {}}]


@pytest.mark.parametrize("wrong", ["engine", 5, {"engine": {}}])
def test_containers_that_are_no_list_are_left_to_the_api_server(wrong: Any) -> None:
    merged = merge_pod_template(BASE, spec(containers=wrong))["spec"]
    assert merged["containers"] == wrong
    assert merged["initContainers"] == BASE["spec"]["initContainers"]


NAMES = st.sampled_from(["engine", "sidecar", "logs"])
VALUES = st.text(max_size=3) | st.none()
CONTAINER: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {"name": NAMES},
    optional={
        "image": VALUES,
        "env": st.lists(st.fixed_dictionaries({"name": NAMES, "value": VALUES}), max_size=2),
        "args": st.lists(st.text(max_size=3), max_size=2),
        "resources": st.dictionaries(NAMES, VALUES, max_size=2),
    },
)
PATCHES: st.SearchStrategy[Any] = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=2), max_size=2),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(CONTAINER, max_size=2, unique_by=lambda each: each["name"]),
                "initContainers": st.lists(CONTAINER, max_size=2, unique_by=lambda each: each["name"]),
                "nodeSelector": st.dictionaries(NAMES, VALUES, max_size=2),
            },
        ),
    },
)


@given(PATCHES)
def test_fields_absent_from_a_patch_are_unchanged(patch: dict[str, Any]) -> None:
    before = deepcopy(BASE)
    merged = merge_pod_template(BASE, patch)["spec"]
    assert before == BASE
    for field in ("initContainers", "containers"):
        ours = {container["name"]: container for container in BASE["spec"][field]}
        assert ours.keys() <= {container["name"] for container in merged[field]}
    (engine,) = (container for container in merged["initContainers"] if container["name"] == "engine")
    (base,) = BASE["spec"]["initContainers"]
    assert (engine["ports"], engine["volumeMounts"]) == (base["ports"], base["volumeMounts"])
    assert merged["volumes"] == BASE["spec"]["volumes"]


@given(PATCHES)
def test_applying_a_patch_twice_equals_applying_it_once(patch: dict[str, Any]) -> None:
    once = merge_pod_template(BASE, patch)
    assert merge_pod_template(once, patch) == once


def test_an_empty_patch_changes_nothing() -> None:
    assert merge_pod_template(BASE, {}) == BASE
