"""Actions on observed objects: apply, delete, leave alone."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from clusterless.memory_api import fields_of
from hypothesis import given
from hypothesis import strategies as st
from penstock_operator.manifests.manifest import Manifest, PoolOwner, Ref, ref_of
from penstock_operator.manifests.names import FIELD_MANAGER
from penstock_operator.reconcile.actions import (
    Action,
    ActionReason,
    Apply,
    Conflict,
    Delete,
    DroppedFields,
    decide,
)

Want = Callable[..., dict[str, Manifest]]
OURS = PoolOwner("llama", "apps", "uid-of-llama")


def stored(manifest: Manifest, uid: str = "some-uid") -> Manifest:
    """As the API server has it: with its own fields, and defaults."""
    kept = deepcopy(manifest)
    kept["metadata"] |= {"uid": uid, "resourceVersion": "1", "managedFields": [{}]}
    kept.setdefault("spec", {})["filledIn"] = "by the server"
    return kept


def words(actions: tuple[Action, ...]) -> list[tuple[str, str]]:
    return [(action.reason.value, str(_ref(action))) for action in actions]


def _ref(action: Action) -> Ref:
    return ref_of(action.manifest) if isinstance(action, Apply | DroppedFields) else action.ref


def test_without_existing_objects_all_are_applied_in_order(want: Want) -> None:
    wanted = tuple(want().values())
    actions = decide(wanted, [], OURS)
    assert all(isinstance(action, Apply) and action.reason is ActionReason.MISSING for action in actions)
    assert [action.manifest for action in actions if isinstance(action, Apply)] == list(wanted)


def test_if_all_objects_are_as_desired_no_action_follows(want: Want) -> None:
    wanted = tuple(want().values())
    assert decide(wanted, [stored(each) for each in wanted], OURS) == ()


def test_a_foreign_change_is_drift_and_names_the_field(want: Want) -> None:
    wanted = want()
    seen = [stored(each) for each in wanted.values()]
    (deployment,) = (each for each in seen if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["image"] = "other:1"
    (action,) = decide(tuple(wanted.values()), seen, OURS)
    assert isinstance(action, Apply)
    assert (action.reason, action.drift) == (
        ActionReason.DRIFTED,
        ("spec.template.spec.containers[router].image",),
    )


def sent(manifest: Manifest) -> Manifest:
    """As the API server has it right after the operator applied it: every field is the operator's."""
    kept = stored(manifest)
    entry = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": fields_of(manifest)}
    kept["metadata"]["managedFields"] = [entry]
    return kept


def test_fields_changed_by_admission_are_left_unchanged(want: Want) -> None:
    wanted = want()
    seen = {name: sent(each) for name, each in wanted.items()}
    template = seen["Deployment/llama-router"]["spec"]["template"]["spec"]
    template["containers"][0]["image"] = "mirror.example/router:1"
    assert decide(tuple(wanted.values()), list(seen.values()), OURS) == ()


def test_fields_dropped_by_the_api_server_are_reported_and_not_sent_again(want: Want) -> None:
    wanted = want()
    seen = {name: sent(each) for name, each in wanted.items()}
    del seen["Deployment/llama-router"]["spec"]["template"]["spec"]["containers"][0]["image"]
    assert decide(tuple(wanted.values()), list(seen.values()), OURS) == (
        DroppedFields(wanted["Deployment/llama-router"], ("spec.template.spec.containers[router].image",)),
    )


def test_a_changed_spec_is_a_change_and_not_drift(want: Want) -> None:
    seen = [stored(each) for each in want(replicas=2).values()]
    actions = decide(tuple(want(replicas=3).values()), seen, OURS)
    assert words(actions) == [("changed", 'StatefulSet "llama-replica"')]


def test_a_field_that_is_no_longer_desired_counts_as_changed(want: Want) -> None:
    router = {"podTemplate": {"spec": {"nodeSelector": {"pool": "cpu"}}}}
    seen = [stored(each) for each in want(router=router).values()]
    actions = decide(tuple(want().values()), seen, OURS)
    assert words(actions) == [("changed", 'Deployment "llama-router"')]


@pytest.mark.parametrize("lost", ["labels", "annotations"])
def test_removed_labels_are_restored(want: Want, lost: str) -> None:
    wanted = want()["Service/llama"]
    seen = stored(wanted)
    del seen["metadata"][lost]
    (action,) = decide([wanted], [seen], OURS)
    assert (action.reason, action.drift if isinstance(action, Apply) else None) == (
        ActionReason.DRIFTED,
        (f"metadata.{lost}",),
    )


def test_an_object_no_longer_desired_is_deleted_by_its_uid(want: Want) -> None:
    before, after = want(ingress={"host": "a.example"}), want()
    seen = [stored(each, uid=name) for name, each in before.items()]
    (action,) = decide(tuple(after.values()), seen, OURS)
    assert action == Delete(
        Ref("networking.k8s.io/v1", "Ingress", "apps", "llama"), "Ingress/llama", ActionReason.ORPHANED
    )


def foreign(manifest: Manifest, **owner: Any) -> Manifest:
    """Return the object with a foreign ownerReference, or with none."""
    other = stored(manifest)
    other["metadata"]["ownerReferences"] = [owner] if owner else []
    return other


@pytest.mark.parametrize(
    ("owner", "whose"),
    [
        ({}, "has no ownerReference to this pool"),
        ({"kind": "Release", "name": "web", "uid": "x", "controller": True}, 'belongs to Release "web"'),
        (
            {"kind": "ServingPool", "name": "llama", "uid": "an-earlier-one", "controller": True},
            'belongs to ServingPool "llama"',
        ),
    ],
    ids=["nobody", "another controller", "an earlier pool of the name"],
)
def test_a_foreign_object_of_the_same_name_is_a_conflict_and_left_alone(
    want: Want, owner: dict[str, Any], whose: str
) -> None:
    wanted = want()
    seen = [stored(each) for name, each in wanted.items() if name != "Service/llama"]
    (action,) = decide(tuple(wanted.values()), [*seen, foreign(wanted["Service/llama"], **owner)], OURS)
    assert isinstance(action, Conflict)
    assert action.message == f'Service "llama" {whose}: delete it, or give the pool another name'


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.update(ownerReferences=[]),
        lambda metadata: metadata["ownerReferences"][0].update(uid="another-pool"),
        lambda metadata: metadata["labels"].update({"app.kubernetes.io/managed-by": "Helm"}),
        lambda metadata: metadata.pop("labels"),
        lambda metadata: metadata.update(deletionTimestamp="2026-01-01T00:00:00Z"),
    ],
    ids=["no owner", "other owner", "other manager", "no labels", "leaving already"],
)
def test_objects_of_other_owners_are_not_deleted(want: Want, change: Callable[[Any], Any]) -> None:
    ingress = stored(want(ingress={"host": "a.example"})["Ingress/llama"])
    change(ingress["metadata"])
    assert decide([], [ingress], OURS) == ()


def test_an_object_that_is_being_deleted_is_awaited(want: Want) -> None:
    wanted = want()["Service/llama"]
    deleted = stored(wanted)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    deleted["spec"]["ports"] = []
    assert decide([wanted], [deleted], OURS) == ()


def test_pods_and_slices_with_the_same_label_are_ignored(want: Want) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "llama-replica-0",
            "namespace": "apps",
            "uid": "p",
            "labels": want()["StatefulSet/llama-replica"]["metadata"]["labels"],
            "ownerReferences": [{"kind": "StatefulSet", "name": "llama-replica", "uid": "s"}],
        },
    }
    assert decide([], [pod], OURS) == ()


OBJECT_STATES = st.sampled_from(["ours", "drifted", "foreign", "gone", "leaving"])
PARTS = st.sampled_from(
    [
        {},
        {"ingress": {"host": "a.example"}},
        {"monitoring": {"serviceMonitor": True}},
        {"router": {"replicas": 4}},
        {"scheduling": {"policy": "sola"}},
    ]
)


@given(data=st.data(), before=PARTS, after=PARTS)
def test_one_reconciliation_suffices_and_touches_no_foreign_object(
    want: Want, data: st.DataObject, before: dict[str, Any], after: dict[str, Any]
) -> None:
    wanted = tuple(want(**after).values())
    seen = [
        state
        for each in want(**before).values()
        for state in _in_some_state(each, data.draw(OBJECT_STATES, label=str(ref_of(each))))
    ]
    actions = decide(wanted, seen, OURS)
    others = [each for each in seen if each["metadata"]["ownerReferences"] == []]
    assert not {ref_of(each) for each in others} & {_ref(a) for a in actions if not isinstance(a, Conflict)}
    again = decide(wanted, _carried_out(actions, seen), OURS)
    assert all(isinstance(action, Conflict) for action in again)
    assert [action for action in actions if isinstance(action, Conflict)] == list(again)


def _in_some_state(manifest: Manifest, whose: str) -> list[Manifest]:
    if whose == "gone":
        return []
    if whose == "foreign":
        return [foreign(manifest)]
    state = stored(manifest)
    if whose == "drifted":
        state["metadata"]["labels"].pop("penstock.dev/pool")
    if whose == "leaving":
        state["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    return [state]


def _carried_out(actions: tuple[Action, ...], seen: list[Manifest]) -> list[Manifest]:
    there = {ref_of(each): each for each in seen}
    for action in actions:
        if isinstance(action, Apply):
            there[ref_of(action.manifest)] = stored(action.manifest)
        elif isinstance(action, Delete):
            del there[action.ref]
    return list(there.values())
